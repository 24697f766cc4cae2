"""The user of a client that authenticates with a certificate (``ssl.principal.mapping.rules``, KIP-371).

A certificate has a distinguished name, a list of attributes. It is written as Java writes it (RFC 2253: the
last attribute first), because rules and ACLs of Kafka contain such names. The rules are tried in order, and
the first rule whose pattern matches the whole name turns it into the user. Patterns are matched by RE2 in
time linear in the name, so no certificate can make a rule hang.
"""

import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import re2  # type: ignore[import-untyped]

DEFAULT: Final = "DEFAULT"
PATTERN_MAX: Final = 4_096
_PROGRAM_BYTES_MAX: Final = 1 << 20

_SHORT: Final = {
    "commonName": "CN",
    "countryName": "C",
    "domainComponent": "DC",
    "localityName": "L",
    "organizationName": "O",
    "organizationalUnitName": "OU",
    "stateOrProvinceName": "ST",
    "streetAddress": "STREET",
    "userId": "UID",
}
"""OpenSSL's names of the attributes that have a short name in RFC 2253."""

_IA5, _PRINTABLE, _UTF8 = 0x16, 0x13, 0x0C
_NUMBERS: Final = {
    "emailAddress": ("1.2.840.113549.1.9.1", _IA5),
    "serialNumber": ("2.5.4.5", _PRINTABLE),
    "dnQualifier": ("2.5.4.46", _PRINTABLE),
    "surname": ("2.5.4.4", _UTF8),
    "title": ("2.5.4.12", _UTF8),
    "description": ("2.5.4.13", _UTF8),
    "businessCategory": ("2.5.4.15", _UTF8),
    "postalCode": ("2.5.4.17", _UTF8),
    "name": ("2.5.4.41", _UTF8),
    "givenName": ("2.5.4.42", _UTF8),
    "initials": ("2.5.4.43", _UTF8),
    "generationQualifier": ("2.5.4.44", _UTF8),
    "pseudonym": ("2.5.4.65", _UTF8),
    "organizationIdentifier": ("2.5.4.97", _UTF8),
    "unstructuredName": ("1.2.840.113549.1.9.2", _UTF8),
    "jurisdictionLocalityName": ("1.3.6.1.4.1.311.60.2.1.1", _UTF8),
    "jurisdictionStateOrProvinceName": ("1.3.6.1.4.1.311.60.2.1.2", _UTF8),
    "jurisdictionCountryName": ("1.3.6.1.4.1.311.60.2.1.3", _PRINTABLE),
}
"""The object identifiers of other attributes, and the string types that OpenSSL gives their values."""

_ESCAPED: Final = re.compile(r'[,=+<>#;"\\]')
_SPACES: Final = re.compile(r"\A[ \r]+|[ \r]+\Z")


class NoRuleMatches(ValueError):
    """No rule maps the certificate to a user, so the client must be refused."""


def distinguished_name(certificate: Mapping[str, Any]) -> str:
    """Return the subject of `SSLObject.getpeercert()`, such as ``CN=client,OU=x,O=y``. It may be empty."""
    sets = certificate.get("subject", ())
    return ",".join("+".join(_attribute(name, value) for name, value in each) for each in reversed(sets))


def _attribute(name: str, value: str) -> str:
    if name in _SHORT:
        return f"{_SHORT[name]}={_escaped(value)}"
    # Java writes an attribute without a short name as its object identifier and the bytes of the certificate.
    # The string type in these bytes is not known here, so the usual type is assumed.
    number, kind = _NUMBERS.get(name, (name, _UTF8))
    content = value.encode()
    return f"{number}=#{(bytes([kind]) + _length(len(content)) + content).hex()}"


def _length(size: int) -> bytes:
    """Encode a length in DER."""
    if size < 128:
        return bytes([size])
    digits = size.to_bytes((size.bit_length() + 7) // 8, "big")
    return bytes([0x80 | len(digits)]) + digits


def _escaped(value: str) -> str:
    text = _ESCAPED.sub(r"\\\g<0>", value).replace("\0", "\\00")
    return _SPACES.sub(lambda found: "".join("\\" + sign for sign in found[0]), text)


class _Rule(NamedTuple):
    """A pattern, what replaces it (texts, and numbers of groups), and the case of the result."""

    pattern: Any
    replacement: tuple[str | int, ...]
    case: str

    def apply(self, name: str) -> str | None:
        if self.pattern.fullmatch(name) is None:
            return None
        # As in Java: each match of a search in the name is replaced, not the match of the whole name.
        result, end = "", 0
        for found in self.pattern.finditer(name):
            result += name[end : found.start()]
            result += "".join(
                each if isinstance(each, str) else (found.group(each) or "") for each in self.replacement
            )
            end = found.end()
        result += name[end:]
        return {"L": result.lower(), "U": result.upper()}.get(self.case, result)


class Rules:
    """The rules of the setting, in their order. None stands for DEFAULT: the whole name."""

    def __init__(self, rules: tuple[_Rule | None, ...]) -> None:
        self._rules = rules

    def user(self, name: str) -> str:
        """Return the user of a distinguished name; NoRuleMatches if there is none."""
        for rule in self._rules:
            user = name if rule is None else rule.apply(name)
            if user is not None:
                return user
        raise NoRuleMatches(f"no rule of ssl.principal.mapping.rules matches the certificate of {name}")


def parse_rules(text: str) -> Rules:
    """Read ``ssl.principal.mapping.rules``; ValueError says what is wrong. Empty rules are ignored."""
    rules: list[_Rule | None] = []
    rest = text.strip()
    while rest:
        if rest.startswith(","):
            rest = rest[1:].lstrip()
            continue
        read = _RULE.match(rest)
        if read is None:
            raise ValueError(
                f"ssl.principal.mapping.rules cannot be parsed at {rest[:80]!r}: write DEFAULT, or "
                "RULE:pattern/replacement/ with L or U after it, separated by commas"
            )
        rules.append(None if read["default"] else _rule(read["pattern"], read["replacement"], read["case"]))
        rest = rest[read.end() :].lstrip()
    return Rules(tuple(rules))


_PART: Final = r"(?:\\.|[^\\/])*"
_RULE: Final = re.compile(
    rf"(?:(?P<default>{DEFAULT})|RULE:(?P<pattern>{_PART})/(?P<replacement>{_PART})/(?P<case>[LU]?))\s*(?=,|\Z)",
    re.DOTALL,
)


def _rule(pattern: str, replacement: str, case: str) -> _Rule:
    setting = "ssl.principal.mapping.rules"
    if len(pattern) > PATTERN_MAX:
        raise ValueError(f"{setting} has a pattern that is longer than {PATTERN_MAX} characters")
    options = re2.Options()
    options.max_mem = _PROGRAM_BYTES_MAX
    options.log_errors = False
    try:
        compiled = re2.compile(pattern, options)
    except re2.error as error:
        (reason,) = error.args
        words = reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)
        raise ValueError(f"{setting} has a pattern that RE2 refuses, {pattern!r}: {words}") from None
    return _Rule(compiled, _parts(replacement, compiled.groups), case)


def _parts(replacement: str, groups: int) -> tuple[str | int, ...]:
    """Parse a replacement: ``$1`` is a group, and a backslash makes the next character literal.

    As in Kafka, ``$12`` is group 1 and a 2 if there are fewer than 12 groups, and ``$4`` is text if there are
    fewer than 4.
    """
    parts: list[str | int] = []
    at = 0
    while at < len(replacement):
        sign = replacement[at]
        if sign == "\\" and at + 1 < len(replacement):
            parts.append(replacement[at + 1])
            at += 2
            continue
        digits = re.match(r"[0-9]+", replacement[at + 1 :]) if sign == "$" else None
        if digits is None:
            parts.append(sign)
            at += 1
            continue
        number = digits[0]
        while len(number) > 1 and (int(number) > groups or number.startswith("0")):
            number = number[:-1]
        parts.append(int(number) if int(number) <= groups else f"${number}")
        at += 1 + len(number)
    return tuple(parts)
