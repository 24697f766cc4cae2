"""The user of a client certificate: names as Java writes them, and Kafka's mapping rules.

The expected names were printed by `X500Principal.getName` of Java 25.
"""

from typing import Any

import pytest

from semel.server.sasl.certificate_names import NoRuleMatches, distinguished_name, parse_rules


def subject(*attributes: tuple[str, str]) -> dict[str, Any]:
    """Return a certificate whose attributes are in this order, as `getpeercert` has it."""
    return {"subject": tuple((each,) for each in attributes)}


def test_the_last_attribute_comes_first() -> None:
    certificate = subject(
        ("countryName", "DE"),
        ("organizationName", "y"),
        ("organizationalUnitName", "x"),
        ("commonName", "client"),
    )
    assert distinguished_name(certificate) == "CN=client,OU=x,O=y,C=DE"


def test_all_short_names() -> None:
    names = "stateOrProvinceName localityName streetAddress domainComponent domainComponent userId commonName"
    certificate = subject(*((name, str(number)) for number, name in enumerate(names.split())))
    assert distinguished_name(certificate) == "CN=6,UID=5,DC=4,DC=3,STREET=2,L=1,ST=0"


@pytest.mark.parametrize(
    ("value", "written"),
    [
        ("a, b", r"a\, b"),
        ("x=y+z", r"x\=y\+z"),
        ('#q<>;"\\', r"\#q\<\>\;\"\\"),
        (" lead trail ", r"\ lead trail\ "),
        ("  two  ", r"\ \ two\ \ "),
        ("mid#dle=x", r"mid\#dle\=x"),
        ("Zoë€", "Zoë€"),
        ("a/b:c'(d)?-.", "a/b:c'(d)?-."),
        ("a\0b", r"a\00b"),
        (" ", r"\ "),
        ("", ""),
    ],
)
def test_escapes(value: str, written: str) -> None:
    assert distinguished_name(subject(("commonName", value))) == f"CN={written}"


@pytest.mark.parametrize(
    ("attribute", "value", "written"),
    [
        ("emailAddress", "a@b.c", "1.2.840.113549.1.9.1=#16056140622e63"),
        ("serialNumber", "12", "2.5.4.5=#13023132"),
        ("dnQualifier", "1", "2.5.4.46=#130131"),
        ("title", "boss", "2.5.4.12=#0c04626f7373"),
        ("1.2.3.4", "hello", "1.2.3.4=#0c0568656c6c6f"),
        ("givenName", "g" * 200, "2.5.4.42=#0c81c8" + "67" * 200),
    ],
)
def test_other_attributes_are_written_as_number_and_bytes(attribute: str, value: str, written: str) -> None:
    assert distinguished_name(subject((attribute, value), ("commonName", "x"))) == f"CN=x,{written}"


def test_several_attributes_in_one_place() -> None:
    certificate = {"subject": ((("domainComponent", "a"),), (("commonName", "x"), ("userId", "u")))}
    assert distinguished_name(certificate) == "CN=x+UID=u,DC=a"


def test_a_certificate_without_a_subject_has_an_empty_name() -> None:
    assert distinguished_name({}) == distinguished_name({"subject": ()}) == ""


def test_a_value_cannot_pretend_to_be_another_attribute() -> None:
    certificate = subject(("organizationName", "y"), ("commonName", "mallory,OU=admins"))
    assert distinguished_name(certificate) == r"CN=mallory\,OU\=admins,O=y"
    rules = parse_rules("RULE:^CN=.*,OU=admins,.*$/admin/,DEFAULT")
    assert rules.user(distinguished_name(certificate)) != "admin"


# Rules. The cases are those of Kafka's SslPrincipalMapperTest.


@pytest.mark.parametrize(
    "text",
    [
        "default",
        "DEFAUL",
        "DEFAULT/L",
        "DEFAULT/U",
        "RULE:CN=(.*?),OU=ServiceUsers.*/$1",
        "rule:^CN=(.*?),OU=ServiceUsers.*$/$1/",
        "RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/L/U",
        "RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/LU",
        "RULE:^CN=(.*?),OU=ServiceUsers.*$/L",
        "RULE:^CN=(.*?),OU=ServiceUsers.*$/U",
        "RULE:^CN=(.*?),OU=ServiceUsers.*$/LU",
        "DEFAULT DEFAULT",
    ],
)
def test_invalid_rules(text: str) -> None:
    with pytest.raises(ValueError, match=r"ssl.principal.mapping.rules"):
        parse_rules(text)


@pytest.mark.parametrize(
    ("text", "name", "user"),
    [
        ("DEFAULT", "CN=a", "CN=a"),
        ("RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/L, DEFAULT", "CN=Alice,OU=ServiceUsers,O=x", "alice"),
        ("RULE:^cn=(.?),ou=(.?),dc=(.?),dc=(.?)$/$1@$2/U", "cn=a,ou=b,dc=c,dc=d", "A@B"),
        ("RULE:^CN=([^,DEFAULT,]+)(,.*|$)/$1/", "CN=bob,O=x", "bob"),
        ("  RULE:   /     / ,  DEFAULT  ", "   ", "     "),
        (",,RULE://,,,DEFAULT,,", "CN=a", "CN=a"),
        (
            "RULE:,RULE:,/,RULE:,\\//U,RULE:,/RULE:,/,RULE:,RULE:,/L,RULE:,/L,RULE:, DEFAULT, /DEFAULT/"
            ",DEFAULT",
            ",RULE:,",
            ",RULE:,/",
        ),
    ],
)
def test_valid_rules(text: str, name: str, user: str) -> None:
    assert parse_rules(text).user(name) == user


@pytest.mark.parametrize(
    ("name", "user"),
    [
        ("CN=Duke,OU=ServiceUsers,O=Org,C=US", "duke"),
        ("CN=Duke,OU=SME,O=mycp,L=Fulton,ST=MD,C=US", "duke@sme"),
        ("cn=duke,ou=sme,dc=mycp,dc=com", "DUKE@SME"),
        ("cN=duke,OU=JavaSoft,O=Sun Microsystems", "DUKE"),
        ("OU=JavaSoft,O=Sun Microsystems,C=US", "OU=JavaSoft,O=Sun Microsystems,C=US"),
    ],
)
def test_the_first_rule_that_matches_decides(name: str, user: str) -> None:
    rules = parse_rules(
        "RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/L, "
        "RULE:^CN=(.*?),OU=(.*?),O=(.*?),L=(.*?),ST=(.*?),C=(.*?)$/$1@$2/L, "
        "RULE:^cn=(.*?),ou=(.*?),dc=(.*?),dc=(.*?)$/$1@$2/U, "
        "RULE:^.*[Cc][Nn]=([a-zA-Z0-9.]*).*$/$1/U, DEFAULT"
    )
    assert rules.user(name) == user


def test_a_comma_in_a_name() -> None:
    rules = parse_rules(r"RULE:^CN=((\\, *|\w)+)(,.*|$)/$1/,DEFAULT")
    assert rules.user(r"CN=Tkac\, Adam,OU=ITZ,DC=geodis,DC=cz") == r"Tkac\, Adam"


@pytest.mark.parametrize(
    ("rule", "name", "user"),
    [
        ("RULE:.*/x/", "abc", "xx"),  # Java finds the empty end too
        ("RULE:CN=(.*?)/[$1]/", "CN=foo", "[]foo"),
        (r"RULE:(CN)=(x)?.*/$1-$2|\$9/", "CN=foo", "CN-|$9"),
        ("RULE:^(.*)$/$12/", "abc", "abc2"),
        ("RULE:^(.*)$/$1@$4/", "abc", "abc@$4"),
        ("RULE:^(.*)$/$0!/", "abc", "abc!"),
        ("RULE:^.*$/$1/", "abc", "$1"),
        (r"RULE:^a\/b$/c\/d/", "a/b", "c/d"),
        ("RULE:^(.)(.)(.)(.)(.)(.)(.)(.)(.)(.)$/$10$1/", "abcdefghij", "ja"),
        ("RULE:^CN=(.*)$/$1/", "CN=Zoë", "Zoë"),
        ("RULE:^CN=(.*)$/$1/U", "CN=Zoë", "ZOË"),
        ("RULE:^$/nobody/", "", "nobody"),
    ],
)
def test_replacements(rule: str, name: str, user: str) -> None:
    assert parse_rules(rule).user(name) == user


@pytest.mark.parametrize("text", ["", " , ", "RULE:^CN=a$/b/"])
def test_a_name_that_no_rule_matches_is_refused(text: str) -> None:
    with pytest.raises(NoRuleMatches, match="CN=other"):
        parse_rules(text).user("CN=other")


@pytest.mark.parametrize(
    "pattern", ["(", "(?=x)", r"(a)\\1".replace("\\\\", "\\"), "a{1000}{1000}", "x" * 5000]
)
def test_patterns_that_are_refused(pattern: str) -> None:
    with pytest.raises(ValueError, match=r"ssl.principal.mapping.rules"):
        parse_rules(f"RULE:{pattern}/x/")


def test_a_rule_cannot_hang() -> None:
    rules = parse_rules("RULE:^(a+)+$/x/,RULE:^(.*?,)*(.*?,)*(.*?,)*x$/y/,DEFAULT")
    name = "a" * 50_000 + "!"
    assert rules.user(name) == name
