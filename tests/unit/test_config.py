"""Settings: names, types, choices."""

import pytest

from semel.config import ELSEWHERE, Settings, UnknownSetting, connections_by_host, principals


def test_settings_are_given_by_dotted_names_and_as_text() -> None:
    settings = Settings.of({"transaction.max.timeout.ms": "5000", "transaction.abort.on.disconnect": "true"})
    assert settings.transaction_max_timeout_ms == 5_000
    assert settings.transaction_abort_on_disconnect is True


def test_a_name_that_does_not_exist_is_refused_with_the_nearest_one() -> None:
    with pytest.raises(UnknownSetting, match=r"transaction\.max\.timeout\.ms"):
        Settings.of({"transaction.max.timeout": "5000"})


@pytest.mark.parametrize("word", ["on_commit", "always"])
def test_a_choice(word: str) -> None:
    assert Settings.of({"semel.durability": word}).semel_durability == word


@pytest.mark.parametrize(
    "make", [lambda: Settings(semel_durability="x"), lambda: Settings.of({"semel.durability": "x"})]
)
def test_a_word_that_is_no_choice_is_refused(make: object) -> None:
    with pytest.raises(ValueError, match=r"semel\.durability.* on_commit or always.*'x'"):
        make()  # type: ignore[operator]


def test_an_empty_choice_is_told_as_such_and_the_nearest_word_is_named() -> None:
    with pytest.raises(ValueError, match=r"semel\.authorizer.*'acls'.*'acl'"):
        Settings(semel_authorizer="acls")
    with pytest.raises(ValueError, match=r"none .*requested .*required.*'require'"):
        Settings(ssl_client_auth="require")


@pytest.mark.parametrize(
    ("name", "here"),
    [
        ("authorizer.class.name", "semel.authorizer"),
        ("broker.id", "node.id"),
        ("ssl.keystore.location", "ssl.certificate.location"),
        ("listeners", "the option --listen of semel serve"),
    ],
)
def test_a_setting_of_kafka_with_another_name_here_is_told(name: str, here: str) -> None:
    with pytest.raises(UnknownSetting, match=f"'{name}'.*{here}$"):
        Settings.of({name: "x"})


def test_no_setting_that_exists_has_another_name() -> None:
    names = {name for name in ELSEWHERE.values() if not name.startswith("the option")}
    assert names <= set(Settings.names())
    assert not set(ELSEWHERE) & set(Settings.names())


def test_connections_are_limited_by_address_because_they_have_no_names() -> None:
    limits = connections_by_host("10.0.0.7:100, [::1]:5, 0:0:0:0:0:0:0:2:6")
    assert limits == {"10.0.0.7": 100, "::1": 5, "::2": 6}
    with pytest.raises(ValueError, match=r"IP address.*'localhost'"):
        Settings(max_connections_per_ip_overrides="localhost:10")


def test_a_time_until_authentication_is_not_negative() -> None:
    with pytest.raises(ValueError, match=r"connections\.max\.reauth\.ms.* 0.* -5"):
        Settings.of({"connections.max.reauth.ms": "-5"})
    Settings(connections_max_reauth_ms=9_223_372_036_854_775_807)


@pytest.mark.parametrize(
    "wrong", ["User: admin", "User:admin,", "user:admin", "admin", "User:bob; User: admin"]
)
def test_a_super_user_that_is_spelled_wrongly_is_refused_with_the_right_one(wrong: str) -> None:
    """It would be somebody who does not exist, and the one who was meant would have no rights."""
    with pytest.raises(ValueError, match=r"super\.users.*'User:admin'"):
        Settings(super_users=wrong)


def test_super_users_are_separated_by_semicolons_and_may_have_commas() -> None:
    assert principals("User:admin; User:CN=root,O=Example") == {"User:admin", "User:CN=root,O=Example"}
