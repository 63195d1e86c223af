"""What came of a call, written down and read again."""

from typing import Any

import pytest
from hypothesis import given, strategies as st

from nodes.execute_tools.recorded_runs import as_json, from_json
from nodes.execute_tools.registry import ToolOutput
from nodes.execute_tools.tool_run import ToolRun
from nodes.records import (
    ChangeKind,
    FileChange,
    Plan,
    PlanStep,
    ToolError,
    ToolErrorCode,
    ToolResult,
)

TEXTS = st.text(st.characters(codec="utf-8"), max_size=20)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=8,
)
ERRORS = st.builds(
    ToolError, code=st.sampled_from(ToolErrorCode), message=TEXTS, suggestions=st.tuples(TEXTS), fatal=st.booleans()
)
RESULTS = st.builds(lambda data: ToolResult(ok=True, data=data), st.dictionaries(TEXTS, JSON, max_size=3)) | st.builds(
    lambda error: ToolResult(ok=False, error=error), ERRORS
)
CHANGES = st.builds(
    FileChange, path=TEXTS, kind=st.sampled_from(ChangeKind), sha256_before=TEXTS, sha256_after=TEXTS, diff=TEXTS
)
OUTPUTS = st.builds(
    ToolOutput,
    result=RESULTS,
    changes=st.lists(CHANGES, max_size=2).map(tuple),
    files_read=st.dictionaries(TEXTS, TEXTS, max_size=2),
    plan=st.none() | st.just(Plan(steps=(PlanStep(title="mend it"),))),
)
RUNS = st.builds(
    ToolRun,
    call_id=st.just("call_1"),
    tool=st.just("edit_file"),
    output=OUTPUTS,
    error=TEXTS,
    attempts=st.integers(0, 3),
    cached=st.booleans(),
    ms=st.integers(0, 10**6),
    error_type=TEXTS,
)


@given(RUNS)
def test_a_run_comes_back_as_it_was(run: ToolRun) -> None:
    assert from_json("call_1", "edit_file", as_json(run)) == run


def test_the_call_that_is_resumed_gives_its_own_id() -> None:
    run = ToolRun("call_1", "edit_file", ToolOutput.ok(path="a.py"), attempts=1, ms=3)
    assert from_json("other", "edit_file", as_json(run)) == ToolRun(
        "other", "edit_file", ToolOutput.ok(path="a.py"), attempts=1, ms=3
    )


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"result": {"ok": true}}', "not JSON", '{"ok": true, "more": 1}'])
def test_what_no_run_is_is_not_taken_for_one(text: Any) -> None:
    assert from_json("call_1", "edit_file", text) is None
