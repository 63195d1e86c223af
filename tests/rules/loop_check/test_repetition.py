import re
from collections.abc import Collection, Iterable
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from mendgraph.nodes.loop_check import (
    LOOP_OVERRIDE_MAX_RETRIES,
    LOOP_REPEAT_THRESHOLD,
    REPEAT_WINDOW,
    OverrideConstraint,
)
from mendgraph.nodes.loop_check.repetition import (
    LONGEST_CYCLE,
    MAX_FAILED_TRIES,
    MOST_OUTCOMES,
    LoopConfig,
    action_signature,
    check_progress,
    loop_stop,
    override_notice,
    signature_of,
    target_of,
)
from mendgraph.nodes.records import Effect, LoopRecord, LoopVerdict, StopCause, StopReason, ToolCall, ToolSpec
from tests.row_tables import rows

FRESH, OVERRIDE, PERSISTED = LoopVerdict.FRESH, LoopVerdict.OVERRIDE, LoopVerdict.PERSISTED
DESCRIBED = {name: ("read_file", f"{name}.py") for name in "ABCDEFVWXYZ"}
DEFAULT = LoopConfig()


def after(
    record: LoopRecord, *signatures: str, changed: Collection[str] = (), config: LoopConfig = DEFAULT, outcome: str = ""
) -> LoopRecord:
    outcomes = dict.fromkeys(signatures, outcome)
    return check_progress(
        record, signatures, DESCRIBED, changed=changed, answered=False, config=config, outcomes=outcomes
    )


def play(steps: Iterable[str], config: LoopConfig = DEFAULT) -> tuple[LoopRecord, list[LoopVerdict]]:
    """The record after these steps, and the verdict of each.

    `!` follows an action that changed a file. Digits at the end of a step tell one result of its calls from another.
    """
    record, verdicts = LoopRecord(), []
    for step in steps:
        changed = {name for name, mark in pairwise(step) if mark == "!"}
        names = step.rstrip("0123456789")
        outcome = step.removeprefix(names)
        record = after(record, *names.replace("!", ""), changed=changed, config=config, outcome=outcome)
        verdicts.append(record.verdict)
    return record, verdicts


def constraint(name: str, repeats: int = 3) -> OverrideConstraint:
    return OverrideConstraint(signature=name, tool="read_file", target=f"{name}.py", repeats=repeats)


def test_defaults_are_those_of_the_spec() -> None:
    assert (REPEAT_WINDOW, LOOP_REPEAT_THRESHOLD, LOOP_OVERRIDE_MAX_RETRIES) == (3, 3, 1)
    assert LoopConfig(window=3, threshold=3, max_overrides=1, max_failed_tries=4, require_checks=False) == DEFAULT
    assert MAX_FAILED_TRIES == 4


@rows(
    ("A A A A", [FRESH, FRESH, OVERRIDE, PERSISTED]),
    ("A A A B A", [FRESH, FRESH, OVERRIDE, FRESH, OVERRIDE]),
    ("A A A B C D A E", [FRESH, FRESH, OVERRIDE, FRESH, FRESH, FRESH, OVERRIDE, FRESH]),
    ("A A A B A B A", [FRESH, FRESH, OVERRIDE, FRESH, OVERRIDE, FRESH, PERSISTED]),
    ("A A A B A A", [FRESH, FRESH, OVERRIDE, FRESH, OVERRIDE, PERSISTED]),
    ("A A A AB", [FRESH, FRESH, OVERRIDE, PERSISTED]),
    ("A B A B A B A B", [*[FRESH] * 5, OVERRIDE, OVERRIDE, PERSISTED]),
    ("A B A B A B C A B", [*[FRESH] * 5, OVERRIDE, FRESH, FRESH, OVERRIDE]),
    ("A B C A B C A B C", [*[FRESH] * 8, OVERRIDE]),
    ("A A B A A B A A B A", [*[FRESH] * 8, OVERRIDE, OVERRIDE]),
    ("A B C D A B C D A B C D A", [FRESH] * 13),
    ("ABABAB A B", [OVERRIDE, OVERRIDE, PERSISTED]),
    ("A1 A2 A3 A4 A5", [FRESH] * 5),
    ("A1 A2 A2 A2", [FRESH, FRESH, FRESH, OVERRIDE]),
    ("A1 A2 A1 A2", [FRESH, FRESH, FRESH, OVERRIDE]),
    ("A1 B A2 B A3 B A4 B", [FRESH] * 8),
    ("W!1 W!2 W!3", [FRESH, FRESH, OVERRIDE]),
    ("AAA A", [OVERRIDE, PERSISTED]),
    ("BAAA BA", [OVERRIDE, PERSISTED]),
    ("A AA", [FRESH, OVERRIDE]),
    ("AB AB AB B", [FRESH, FRESH, OVERRIDE, PERSISTED]),
    ("A A A B B B B", [FRESH, FRESH, OVERRIDE, FRESH, FRESH, OVERRIDE, PERSISTED]),
    ("W! R W! R W! W", [FRESH, FRESH, FRESH, FRESH, OVERRIDE, PERSISTED]),
    ("A A A V! A A A", [FRESH, FRESH, OVERRIDE, FRESH, FRESH, FRESH, OVERRIDE]),
    ("RV! RW! RX! RY! RZ!", [FRESH] * 5),
    ("V! W! V! W! V! W!", [FRESH] * 6),
)
def test_each_step_has_its_verdict(steps: str, verdicts: list[LoopVerdict]) -> None:
    assert play(steps.split())[1] == verdicts


@rows((0, [FRESH, FRESH, PERSISTED]), (2, [FRESH, FRESH, OVERRIDE, OVERRIDE, PERSISTED]))
def test_max_overrides_bounds_refused_repeats(max_overrides: int, verdicts: list[LoopVerdict]) -> None:
    config = LoopConfig(max_overrides=max_overrides)
    assert play(["A"] * len(verdicts), config)[1] == verdicts


def test_change_clears_overrides_and_all_but_its_own_call() -> None:
    before = LoopRecord(recent=(("A",), ("V", "A"), ("A",)), overrides=(constraint("A"),), verdict=OVERRIDE)
    record = after(before, "A", "V", changed={"V"})
    assert (record.recent, record.overrides, record.verdict) == ((("V",), ("V",)), (), FRESH)


def test_persistent_loop_reports_its_signature() -> None:
    record, _ = play(["B", "B", "B", "A", "A", "A", "A"])
    assert loop_stop(record, DEFAULT) == StopCause(
        reason=StopReason.LOOP_PERSISTED,
        message="The same call was made 4 times with the same arguments: read_file on 'A.py'.",
        diagnostics=("repeated action: read_file on 'A.py', signature A",),
    )


def test_loop_of_a_call_without_a_target_is_named_by_its_tool() -> None:
    override = OverrideConstraint(signature="A", tool="update_plan", target="", repeats=4)
    cause = loop_stop(LoopRecord(overrides=(override,), verdict=PERSISTED), DEFAULT)
    assert cause is not None
    assert cause.message == "The same call was made 4 times with the same arguments: update_plan."


@rows(("A A A", "B"), ("A A A B", "A"), ("A A A A", "A"), ("A", "A"))
def test_other_results_have_no_notice(steps: str, signature: str) -> None:
    assert override_notice(play(steps.split())[0], signature) is None


@rows({"window": 0}, {"threshold": 1}, {"max_overrides": -1}, {"max_failed_tries": 0})
def test_invalid_limits_are_refused(limits: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="greater than or equal"):
        LoopConfig(**limits)


configs = st.builds(LoopConfig, window=st.integers(1, 8), threshold=st.integers(2, 6), max_overrides=st.integers(0, 3))
replies = st.lists(st.lists(st.sampled_from("ABCDEF"), max_size=4).map("".join), max_size=20)


@given(configs, st.integers(0, 10))
def test_override_comes_at_the_threshold_and_the_stop_after_max_overrides(config: LoopConfig, more: int) -> None:
    override_at, stop_at = config.threshold, config.threshold + config.max_overrides
    verdicts = play(["A"] * (stop_at + more), config)[1]
    assert verdicts[: override_at - 1] == [FRESH] * (override_at - 1)
    assert verdicts[override_at - 1 : stop_at - 1] == [OVERRIDE] * (stop_at - override_at)
    assert set(verdicts[stop_at - 1 :]) == {PERSISTED}


@settings(max_examples=30)
@given(replies)
def test_every_persistent_repetition_ends(steps: list[str]) -> None:
    record, _ = play(steps)
    for _ in range(4):
        record = after(record, "A")
    assert record.verdict is PERSISTED


@given(replies, configs)
def test_loop_record_is_bounded_and_serializable(steps: list[str], config: LoopConfig) -> None:
    record, _ = play(steps, config)
    assert len(record.recent) <= max(config.span, LONGEST_CYCLE * config.threshold)
    assert len(record.outcomes) <= MOST_OUTCOMES
    assert all(record.recent)
    assert len({override.signature for override in record.overrides}) == len(record.overrides)
    assert LoopRecord.model_validate_json(record.model_dump_json()) == record


READ = ToolSpec(name="read_file", description="", parameters={}, effect=Effect.READ, path_fields=("path",))
MOVE = ToolSpec(name="move_file", description="", parameters={}, effect=Effect.WRITE, path_fields=("source", "target"))
PLAN = ToolSpec(name="update_plan", description="", parameters={}, effect=Effect.NONE)
ROOT = "/home/dev/project"
NESTED: list[Any] = []
for _ in range(100_000):
    NESTED = [NESTED]

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda children: st.lists(children, max_size=3) | st.dictionaries(st.text(max_size=3), children, max_size=3),
    max_leaves=6,
)
json_maps = st.dictionaries(st.text(st.characters(), max_size=5), json_values, max_size=4)


def call(tool: ToolSpec, **arguments: Any) -> ToolCall:
    return ToolCall(call_id="1", tool=tool.name, arguments=arguments, raw_arguments="")


def signature(tool: ToolSpec, root: str = "", **arguments: Any) -> str:
    return signature_of(call(tool, **arguments), tool, root)


def test_signature_is_stable_across_versions() -> None:
    assert action_signature("read", "read_file", {"path": "a.py", "limit": 5}, "a.py") == "7747c0e8c69c426e"


@rows(
    (("write", "read_file", {"limit": 5}, "a.py"),),
    (("read", "list_files", {"limit": 5}, "a.py"),),
    (("read", "read_file", {"limit": 6}, "a.py"),),
    (("read", "read_file", {"limit": "5"}, "a.py"),),
    (("read", "read_file", {}, "a.py"),),
    (("read", "read_file", {"limit": 5}, "b.py"),),
)
def test_signature_depends_on_every_part_of_a_call(other: tuple[str, str, dict[str, Any], str]) -> None:
    assert action_signature(*other) != action_signature("read", "read_file", {"limit": 5}, "a.py")


@rows(float("nan"), float("inf"), object(), {1, 2}, NESTED)
def test_non_json_value_has_a_signature(value: Any) -> None:
    expected = action_signature("read", "t", {"x": float("nan")}, "")
    assert action_signature("read", "t", {"x": value}, "") == expected


@rows("./a.py", "a.py/", "x/../a.py", ".//a.py", f"{ROOT}/a.py", "../project/a.py")
def test_equivalent_paths_have_the_same_signature(path: str) -> None:
    assert signature(READ, ROOT, path=path) == signature(READ, ROOT, path="a.py")


def test_arguments_other_than_paths_are_not_normalized() -> None:
    written = MOVE.model_copy(update={"path_fields": ("path",)})
    read = written.model_copy(update={"effect": Effect.READ})
    other = written.model_copy(update={"name": "copy_file"})
    signatures = [signature(tool, path="a.py", text="./b") for tool in (written, read, other)]
    assert len({*signatures, signature(written, path="a.py", text="b"), signature(written, path="../a.py")}) == 5
    assert target_of(call(written, path="../a.py"), written) == "../a.py"


@rows("/", "/home/dev/X", "/home/dev/X/")
def test_paths_below_any_root_are_relative_to_it(root: str) -> None:
    assert target_of(call(READ, path=f"{root.rstrip('/')}/a.py"), READ, root) == "a.py"


@rows(
    (READ, {"path": "./src/a.py"}, "src/a.py"),
    (READ, {"path": "."}, "."),
    (READ, {"path": ROOT}, "."),
    (READ, {"path": "/home/dev/project-b/a.py"}, "/home/dev/project-b/a.py"),
    (READ, {"path": ["./a.py", 3, "b.py"]}, "a.py, b.py"),
    (READ, {"path": 3}, ""),
    (READ, {}, ""),
    (MOVE, {"target": "b.py", "source": "./a.py"}, "a.py, b.py"),
    (PLAN, {"path": "a.py"}, ""),
)
def test_target_is_the_path_that_the_call_names(tool: ToolSpec, arguments: dict[str, Any], target: str) -> None:
    assert target_of(call(tool, **arguments), tool, ROOT) == target


@settings(max_examples=30)
@given(json_maps, json_values, st.sampled_from([READ, MOVE, PLAN]), st.sampled_from(["", ROOT, "/"]))
def test_every_call_has_a_signature(arguments: dict[str, Any], path: Any, tool: ToolSpec, root: str) -> None:
    named = arguments | dict.fromkeys(tool.path_fields, path)
    item = ToolCall(call_id="1", tool=tool.name, arguments=named, raw_arguments="")
    assert re.fullmatch("[0-9a-f]{16}", signature_of(item, tool, root))
