"""The base of every declared class: constructor, comparison and repr, as in a dataclass.

`dataclass` generates all three for each of hundreds of classes at import, which took a fifth of the broker's
startup time. Here a constructor is generated when the first object is created, as encoders and decoders are
on first use; comparison and repr need no generated code.
"""

from typing import Any, ClassVar

from semel.wire.source import SourceWriter
from semel.wire.spec import Field


class Declared:
    """The base of all structs and messages. `declare` creates the classes."""

    __slots__ = ()

    declared: ClassVar[dict[str, Field]] = {}
    """The fields by name, in wire order."""

    def __init__(self, **values: Any) -> None:
        kind = type(self)
        # The generated constructor replaces this one for the class.
        kind.__init__ = _constructor(kind)  # type: ignore[method-assign]
        kind.__init__(self, **values)

    def __eq__(self, other: object) -> bool:
        if other.__class__ is not self.__class__:
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in self.declared)

    __hash__ = None  # type: ignore[assignment]  # objects are mutable

    def __repr__(self) -> str:
        shown = (f"{name}={getattr(self, name)!r}" for name, field in self.declared.items() if field.is_shown)
        return f"{type(self).__name__}({', '.join(shown)})"


def declare(declaration: type) -> type:
    """Return the class of a declaration, with a slot for every field."""
    content = {name: value for name, value in vars(declaration).items() if name not in _OF_A_CLASS}
    fields = {name: content.pop(name) for name in declaration.__annotations__}
    bases = declaration.__bases__ if issubclass(declaration, Declared) else (Declared,)
    return type(declaration.__name__, bases, {**content, "__slots__": tuple(fields), "declared": fields})


_OF_A_CLASS = ("__dict__", "__weakref__")
_NOT_GIVEN = object()


def _constructor(kind: type[Declared]) -> Any:
    """Generate a function that takes every field by name, with defaults."""
    out = SourceWriter({"NOT_GIVEN": _NOT_GIVEN})
    made = {name: _made_anew(out, field) for name, field in kind.declared.items()}
    for name, field in kind.declared.items():
        out.constants[f"DEFAULT_{name}"] = field.default if made[name] is None else _NOT_GIVEN
    taken = ", ".join(["self", *(["*"] if made else ()), *(f"{name}=DEFAULT_{name}" for name in made)])
    with out.block(f"def __init__({taken}):"):
        for name, anew in made.items():
            out.line(
                f"self.{name} = {name if anew is None else f'{anew} if {name} is NOT_GIVEN else {name}'}"
            )
        if not made:
            out.line("pass")
    return out.function("__init__", f"constructor of {kind.__name__}")


def _made_anew(out: SourceWriter, field: Field) -> str | None:
    """Return the source of a mutable default, which is created for each object; None if it is immutable."""
    if field.default is ...:
        assert isinstance(field.element, type)
        return f"{out.class_name(field.element)}()"
    return "[]" if field.default == [] else None
