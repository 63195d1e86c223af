from collections.abc import Collection, Iterable
from itertools import pairwise

import pytest
from hypothesis import given, settings, strategies as st

from mendgraph.nodes.loop_check import (
    LOOP_OVERRIDE_MAX_RETRIES,
    LOOP_REPEAT_THRESHOLD,
    REPEAT_WINDOW,
    OverrideConstraint,
)
from mendgraph.nodes.loop_check.repetition import (
    MAX_FAILED_TRIES,
    LoopConfig,
    check_progress,
    loop_stop,
    override_notice,
)
from mendgraph.nodes.records import LoopRecord, LoopVerdict, StopCause, StopReason

FRESH, OVERRIDE, PERSISTED = LoopVerdict.FRESH, LoopVerdict.OVERRIDE, LoopVerdict.PERSISTED
DESCRIBED = {name: ("read_file", f"{name}.py") for name in "ABCDEFVWXYZ"}
DEFAULT = LoopConfig()


def after(
    record: LoopRecord, *signatures: str, changed: Collection[str] = (), config: LoopConfig = DEFAULT
) -> LoopRecord:
    return check_progress(record, signatures, DESCRIBED, changed=changed, answered=False, config=config)


def play(steps: Iterable[str], config: LoopConfig = DEFAULT) -> tuple[LoopRecord, list[LoopVerdict]]:
    """The record after these steps, and the verdict of each. `!` follows an action that changed a file."""
    record, verdicts = LoopRecord(), []
    for step in steps:
        changed = {name for name, mark in pairwise(step) if mark == "!"}
        record = after(record, *step.replace("!", ""), changed=changed, config=config)
        verdicts.append(record.verdict)
    return record, verdicts


def constraint(name: str, repeats: int = 3) -> OverrideConstraint:
    return OverrideConstraint(signature=name, tool="read_file", target=f"{name}.py", repeats=repeats)


def test_the_defaults_are_the_specifications() -> None:
    assert (REPEAT_WINDOW, LOOP_REPEAT_THRESHOLD, LOOP_OVERRIDE_MAX_RETRIES) == (3, 3, 1)
    assert LoopConfig(window=3, threshold=3, max_overrides=1, max_failed_tries=4) == DEFAULT
    assert MAX_FAILED_TRIES == 4


@pytest.mark.parametrize(
    ("steps", "verdicts"),
    [
        ("A A A A", [FRESH, FRESH, OVERRIDE, PERSISTED]),
        ("A A A B A", [FRESH, FRESH, OVERRIDE, FRESH, PERSISTED]),
        ("A A B A A B A", [FRESH] * 7),
        ("A B A B A B A B", [FRESH] * 8),
        ("AAA A", [OVERRIDE, PERSISTED]),
        ("AAAB A", [OVERRIDE, PERSISTED]),
        ("BAAA BA", [OVERRIDE, PERSISTED]),
        ("A AA", [FRESH, OVERRIDE]),
        ("AB AB AB B", [FRESH, FRESH, OVERRIDE, PERSISTED]),
        ("AB BA AB BA AB", [FRESH] * 5),
        ("A A A B B B B", [FRESH, FRESH, OVERRIDE, FRESH, FRESH, OVERRIDE, PERSISTED]),
        ("A! A! A! A", [FRESH, FRESH, OVERRIDE, PERSISTED]),
        ("W! R W! R W! W", [FRESH, FRESH, FRESH, FRESH, OVERRIDE, PERSISTED]),
        ("A A A V! A A A", [FRESH, FRESH, OVERRIDE, FRESH, FRESH, FRESH, OVERRIDE]),
        ("A A A V!A A A A", [FRESH, FRESH, OVERRIDE, FRESH, FRESH, FRESH, OVERRIDE]),
        ("A A V! A A V! A A", [FRESH] * 8),
        ("RV! RW! RX! RY! RZ!", [FRESH] * 5),
        ("V! W! V! W! V! W!", [FRESH] * 6),
    ],
)
def test_verdicts_step_by_step(steps: str, verdicts: list[LoopVerdict]) -> None:
    assert play(steps.split())[1] == verdicts


def test_a_wider_window_catches_alternation() -> None:
    config = LoopConfig(window=6)
    assert play(["A", "B", "A", "B", "A", "B"], config)[1] == [FRESH, FRESH, FRESH, FRESH, OVERRIDE, OVERRIDE]


@pytest.mark.parametrize(
    ("max_overrides", "verdicts"), [(0, [FRESH, FRESH, PERSISTED]), (2, [FRESH, FRESH, OVERRIDE, OVERRIDE, PERSISTED])]
)
def test_how_many_refused_repeats_are_borne(max_overrides: int, verdicts: list[LoopVerdict]) -> None:
    config = LoopConfig(max_overrides=max_overrides)
    assert play(["A"] * len(verdicts), config)[1] == verdicts


def test_a_change_lifts_the_overrides_and_forgets_all_but_what_made_it() -> None:
    before = LoopRecord(recent=(("A",), ("V", "A"), ("A",)), overrides=(constraint("A"),), verdict=OVERRIDE)
    assert after(before, "A", "V", changed={"V"}) == LoopRecord(recent=(("V",), ("V",)), overrides=(), verdict=FRESH)


def test_a_persistent_loop_leaves_its_evidence() -> None:
    record, _ = play(["B", "B", "B", "A", "A", "A", "A"])
    assert loop_stop(record, DEFAULT) == StopCause(
        reason=StopReason.LOOP_PERSISTED,
        message="The same call was made 4 times with the same arguments: read_file on 'A.py'.",
        diagnostics=("repeated action: read_file on 'A.py', signature A",),
    )


@pytest.mark.parametrize(("steps", "signature"), [("A A A", "B"), ("A A A B", "A"), ("A A A A", "A"), ("A", "A")])
def test_no_other_result_carries_a_notice(steps: str, signature: str) -> None:
    assert override_notice(play(steps.split())[0], signature) is None


@pytest.mark.parametrize("limits", [{"window": 0}, {"threshold": 1}, {"max_overrides": -1}, {"max_failed_tries": 0}])
def test_limits_that_make_no_sense_are_refused(limits: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="greater than or equal"):
        LoopConfig(**limits)


configs = st.builds(LoopConfig, window=st.integers(1, 8), threshold=st.integers(2, 6), max_overrides=st.integers(0, 3))
replies = st.lists(st.lists(st.sampled_from("ABCDEF"), max_size=4).map("".join), max_size=20)


@given(configs, st.integers(0, 10))
def test_an_override_comes_at_the_threshold_and_the_stop_after_the_retries(config: LoopConfig, more: int) -> None:
    override_at, stop_at = config.threshold, config.threshold + config.max_overrides
    verdicts = play(["A"] * (stop_at + more), config)[1]
    assert verdicts[: override_at - 1] == [FRESH] * (override_at - 1)
    assert verdicts[override_at - 1 : stop_at - 1] == [OVERRIDE] * (stop_at - override_at)
    assert set(verdicts[stop_at - 1 :]) == {PERSISTED}


@given(replies, configs)
def test_the_memory_stays_small_and_is_plain_data(steps: list[str], config: LoopConfig) -> None:
    record, _ = play(steps, config)
    assert len(record.recent) <= config.span
    assert all(record.recent)
    assert len({override.signature for override in record.overrides}) == len(record.overrides)
    assert LoopRecord.model_validate_json(record.model_dump_json()) == record


@settings(max_examples=30)
@given(replies)
def test_every_way_of_repeating_on_ends(steps: list[str]) -> None:
    record, _ = play(steps)
    for _ in range(4):
        record = after(record, "A")
    assert record.verdict is PERSISTED
