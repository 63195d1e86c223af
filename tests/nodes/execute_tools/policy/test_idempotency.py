import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import given, strategies as st

from mendgraph.nodes.execute_tools.journal.fingerprints import call_fingerprint, idempotency_key
from mendgraph.nodes.execute_tools.policy.idempotency import Conflict, ConflictKind, IdempotentResults, Stored

OTHER_CALL, IN_PROGRESS = Conflict(ConflictKind.OTHER_CALL), Conflict(ConflictKind.IN_PROGRESS)


class SlowKey(str):
    """A key that lets other threads go first whenever it is looked up."""

    __slots__ = ()

    def __hash__(self) -> int:
        time.sleep(0.001)
        return super().__hash__()


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
json_maps = st.dictionaries(st.text(), json_values, max_size=4)


def test_the_same_call_gives_the_stored_value_again() -> None:
    results = IdempotentResults[str]()
    assert results.begin("k", "f") is None
    results.finish("k", "f", "value")
    assert [results.begin("k", "f") for _ in range(2)] == [Stored("value")] * 2


def test_none_is_a_value_like_any_other() -> None:
    results = IdempotentResults[None]()
    results.begin("k", "f")
    results.finish("k", "f", None)
    assert results.begin("k", "f") == Stored(None)


def test_another_call_under_the_same_key_is_a_conflict_before_and_after_the_end() -> None:
    results = IdempotentResults[str]()
    results.begin("k", "f")
    assert results.begin("k", "other") == OTHER_CALL
    results.finish("k", "f", "value")
    assert results.begin("k", "other") == OTHER_CALL
    assert results.begin("k", "f") == Stored("value")


def test_a_call_that_runs_is_in_progress() -> None:
    results = IdempotentResults[str]()
    results.begin("k", "f")
    assert results.begin("k", "f") == IN_PROGRESS


def test_what_is_forgotten_may_be_made_again() -> None:
    results = IdempotentResults[str]()
    results.begin("running", "f")
    results.begin("finished", "f")
    results.finish("finished", "f", "value")
    for key in ("running", "finished", "unknown"):
        results.forget(key)
        assert results.begin(key, "f") is None


def test_the_first_result_stays_and_no_other_call_can_finish_it() -> None:
    results = IdempotentResults[str]()
    results.begin("k", "f")
    results.finish("k", "other", "wrong")
    assert results.begin("k", "f") == IN_PROGRESS
    results.finish("k", "f", "first")
    results.finish("k", "f", "second")
    assert results.begin("k", "f") == Stored("first")


def test_a_result_that_comes_after_its_call_was_forgotten_is_kept() -> None:
    results = IdempotentResults[str]()
    results.begin("k", "f")
    results.forget("k")
    results.finish("k", "f", "late")
    assert results.begin("k", "f") == Stored("late")


def test_the_result_unused_for_the_longest_is_forgotten_and_never_a_call_that_runs() -> None:
    results = IdempotentResults[str](most=2)
    results.begin("running", "f")
    for key in ("a", "b"):
        results.begin(key, "f")
        results.finish(key, "f", key)
    results.begin("a", "f")
    results.begin("c", "f")
    results.finish("c", "f", "c")
    assert [results.begin(key, "f") for key in ("running", "a", "c", "b")] == [
        IN_PROGRESS,
        Stored("a"),
        Stored("c"),
        None,
    ]


def test_of_many_threads_one_makes_the_call() -> None:
    results, start, made = IdempotentResults[int](), threading.Barrier(8), list[str]()

    def call(number: int) -> None:
        start.wait()
        for key in map(SlowKey, range(5)):
            if results.begin(key, "f") is None:
                made.append(key)
                results.finish(key, "f", number)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(call, range(8)))
    assert sorted(made) == ["0", "1", "2", "3", "4"]


@pytest.mark.parametrize(
    ("conflict", "message"),
    [
        (IN_PROGRESS, "The same call is being made at this moment: wait for its result."),
        (OTHER_CALL, "This idempotency key belongs to another call: use a new key for other arguments."),
    ],
)
def test_a_conflict_says_what_to_do(conflict: Conflict, message: str) -> None:
    assert conflict.message == message


def test_a_key_is_the_same_in_every_process_and_version() -> None:
    """The SHA-256 of ["thread",3,0,"write_file",{"content":"ä","path":"a.py"}], as sha256sum gives it."""
    assert idempotency_key("thread", 3, 0, "write_file", {"path": "a.py", "content": "ä"}) == (
        "26c8a5c3b22ba35f09262302f96f364be7000a603db85eb89a84a8320bdfd28a"
    )


@pytest.mark.parametrize(
    "other",
    [
        ("u", 1, 2, "tool", {"a": 1}),
        ("t", 2, 2, "tool", {"a": 1}),
        ("t", 1, 3, "tool", {"a": 1}),
        ("t", 1, 2, "loot", {"a": 1}),
        ("t", 1, 2, "tool", {"a": 1.0}),
        ("t", 1, 2, "tool", {"a": "1"}),
        ("t", 1, 2, "tool", {"a": True}),
        ("t", 1, 2, "tool", {"a": [1]}),
        ("t", 1, 2, "tool", {"b": 1}),
        ("t", 1, 2, "tool", {}),
    ],
)
def test_each_part_of_a_call_makes_another_key(other: tuple[str, int, int, str, dict[str, Any]]) -> None:
    assert idempotency_key(*other) != idempotency_key("t", 1, 2, "tool", {"a": 1})


def test_a_fingerprint_knows_the_tool_and_the_arguments() -> None:
    prints = [call_fingerprint(*call) for call in (("a", {"x": 1}), ("b", {"x": 1}), ("a", {"x": 2}))]
    assert len(set(prints)) == 3


@given(json_maps, st.randoms(use_true_random=False))
def test_the_order_of_arguments_does_not_matter(arguments: dict[str, Any], random: Any) -> None:
    items = list(arguments.items())
    random.shuffle(items)
    assert idempotency_key("t", 1, 2, "tool", dict(items)) == idempotency_key("t", 1, 2, "tool", arguments)
    assert call_fingerprint("tool", dict(items)) == call_fingerprint("tool", arguments)


@given(json_maps, json_maps)
def test_other_arguments_have_another_fingerprint(one: dict[str, Any], two: dict[str, Any]) -> None:
    same = repr(_sorted(one)) == repr(_sorted(two))
    assert (call_fingerprint("tool", one) == call_fingerprint("tool", two)) is same


def _sorted(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _sorted(value[key]) for key in sorted(value)}
    return [_sorted(each) for each in value] if isinstance(value, list) else value


@pytest.mark.parametrize("odd", ["a\ud83d", 2**64, -(2**70)])
def test_arguments_that_no_file_can_hold_have_keys_nevertheless(odd: Any) -> None:
    key = idempotency_key("t", 1, 2, "tool", {"b": 1, "a": odd})
    assert key == idempotency_key("t", 1, 2, "tool", {"a": odd, "b": 1})
    assert key != idempotency_key("t", 1, 2, "tool", {"a": "a?", "b": 1})


def test_what_is_no_json_has_no_key() -> None:
    with pytest.raises(TypeError):
        call_fingerprint("tool", {"a": object()})
