"""Settings: names, types, choices."""

import pytest

from semel.config import Settings, UnknownSetting


def test_settings_are_given_by_dotted_names_and_as_text() -> None:
    settings = Settings.of({"transaction.max.timeout.ms": "5000", "transaction.abort.on.disconnect": "true"})
    assert settings.transaction_max_timeout_ms == 5_000
    assert settings.transaction_abort_on_disconnect is True


def test_a_name_that_does_not_exist_is_refused_with_the_nearest_one() -> None:
    with pytest.raises(UnknownSetting, match=r"transaction\.max\.timeout\.ms"):
        Settings.of({"transaction.max.timeout": "5000"})


@pytest.mark.parametrize("word", ["early", "flush"])
def test_a_choice(word: str) -> None:
    assert Settings.of({"semel.durability": word}).semel_durability == word


@pytest.mark.parametrize(
    "make", [lambda: Settings(semel_durability="x"), lambda: Settings.of({"semel.durability": "x"})]
)
def test_a_word_that_is_no_choice_is_refused(make: object) -> None:
    with pytest.raises(ValueError, match=r"semel\.durability must be early or flush, not 'x'"):
        make()  # type: ignore[operator]
