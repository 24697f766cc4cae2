"""Rights: what one principal at one host may do. Decisions are remembered until an ACL changes."""

from typing import Final

from semel.core.security.acls import OPERATIONS_OF, Acls, Operation, ResourceType

REMEMBERED_MAX: Final = 1_000
"""Decisions remembered for one principal. When there are more, all are forgotten and decided again."""
NAME_CHARS_MAX: Final = 249
"""Longer names cannot be those of topics. Decisions about them are not remembered."""
ANY_OF_THEM: Final = "\0" * (NAME_CHARS_MAX + 1)
"""The name under which ``may_any`` remembers its decisions: too long to be that of a remembered resource."""


class Rights:
    """The rights of a principal. Without ``acls`` it may do everything."""

    __slots__ = ("_acls", "_host", "_if_none_found", "_known", "_principal")

    def __init__(self, acls: Acls | None, principal: str, host: str, *, if_none_found: bool = False) -> None:
        self._acls = acls
        self._principal = principal
        self._host = host
        self._if_none_found = if_none_found
        self._known: dict[tuple[int, int, str], bool] = {}

    @property
    def are_all(self) -> bool:
        """Whether everything is allowed: to a super user, or because there is no authorizer."""
        return self._acls is None

    def may(self, operation: Operation, resource_type: ResourceType, name: str) -> bool:
        """Whether an operation on a resource is allowed."""
        if self._acls is None:
            return True
        question = (operation, resource_type, name)
        answer = self._known.get(question)
        if answer is None:
            answer = self._acls.allow(
                self._principal, self._host, *question, if_none_found=self._if_none_found
            )
            if len(name) <= NAME_CHARS_MAX:
                self._remember(question, answer)
        return answer

    def may_any(self, operation: Operation, resource_type: ResourceType) -> bool:
        """Whether an operation is allowed on any resource of a type."""
        if self._acls is None:
            return True
        question = (operation, resource_type, ANY_OF_THEM)
        answer = self._known.get(question)
        if answer is None:
            answer = self._acls.allow_any(
                self._principal, self._host, operation, resource_type, if_none_found=self._if_none_found
            )
            self._remember(question, answer)
        return answer

    def _remember(self, question: tuple[int, int, str], answer: bool) -> None:
        if len(self._known) >= REMEMBERED_MAX:
            self._known.clear()
        self._known[question] = answer

    def operations(self, resource_type: ResourceType, name: str) -> int:
        """Return the allowed operations as a bit field, for the authorized operations of a response."""
        return sum(1 << each for each in OPERATIONS_OF[resource_type] if self.may(each, resource_type, name))
