import time
from collections.abc import Callable
from itertools import count

import pytest
from hypothesis import strategies as st

from tests.fuzz import campaign
from tests.fuzz.campaign import attack, error_of
from tests.fuzz.target import Target


def no_x(text: str) -> None:
    assert "x" not in text


def ticking() -> Callable[[], float]:
    """A clock that is a second on at each look."""
    return map(float, count()).__next__


GOOD = Target("good", lambda _: None, st.text)
BAD = Target("bad", no_x, lambda: st.text("abx"))


def test_an_attack_ends_in_time_and_has_tried_something() -> None:
    tried, seconds, found = attack(GOOD, 7, seconds=50.0, clock=ticking())
    assert (tried > 10, seconds < 60.0, found) == (True, True, None)


def test_an_attack_tries_as_much_as_it_is_told_over_several_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(campaign, "ROUND", 30)
    assert attack(GOOD, 7, examples=100).examples == 100


def test_what_is_found_is_made_small() -> None:
    found = attack(BAD, 7, examples=1_000).found
    assert found is not None
    assert (found.target, found.input) == ("bad", "x")
    assert found.error.startswith(f"no_x, line {no_x.__code__.co_firstlineno + 1} AssertionError: ")


def test_the_same_seed_finds_the_same() -> None:
    def tried(seed: int) -> list[str]:
        seen: list[str] = []
        attack(Target("seen", seen.append, lambda: st.text(min_size=5)), seed, examples=20)
        return seen

    assert tried(3) == tried(3) != tried(4)


def test_an_input_that_takes_too_long_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(campaign, "SLOWEST_S", 0.01)
    slow = Target("slow", lambda _: time.sleep(60), st.text)
    assert (error_of(slow, "") or "").endswith("TooSlowError: more than 0.01 s")
    assert error_of(GOOD, "") is None
