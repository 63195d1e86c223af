"""What a reply's files held is known where a person will be asked, and nowhere else."""

from hashlib import sha256
from pathlib import Path

import pytest

from graph.context import AgentContext
from graph.gateway import Gateway
from graph.judging import judge_calls, with_known_files
from graph.slices import GuardSlice
from nodes.guard.file_rules import DEFAULT_GUARDRAIL_RULES
from nodes.records import CallError, ExtractionError, ExtractionErrorType, ToolCall, VerdictKind

BROKEN = CallError(
    call_id="2", tool="", raw_arguments="", error=ExtractionError(ExtractionErrorType.EMPTY_TOOL_NAME, 1, "", "")
)


def call(tool: str, path: str) -> ToolCall:
    return ToolCall(call_id="1", tool=tool, arguments={"path": path}, raw_arguments="")


@pytest.fixture
def gateway() -> Gateway:
    return Gateway(None, DEFAULT_GUARDRAIL_RULES, {}, ())


def test_only_files_that_would_be_changed_are_looked_at_and_only_in_mode_ask(gateway: Gateway, tmp_path: Path) -> None:
    (tmp_path / "a.py").write_bytes(b"a")
    items = [call("delete_file", "a.py"), call("read_file", "b.py"), call("unheard_of", "c.py"), BROKEN]
    context = AgentContext(workspace=str(tmp_path), mode="ask")
    hashed = {"a.py": sha256(b"a").hexdigest()}
    assert with_known_files(gateway, context, {"items": items}) == {"items": items, "known_files": hashed}
    assert with_known_files(gateway, context, {"items": []}) == {"items": []}
    auto = AgentContext(workspace=str(tmp_path))
    assert with_known_files(gateway, auto, {"items": items}) == {"items": items}


def test_a_role_that_is_not_known_denies_every_call(gateway: Gateway, tmp_path: Path) -> None:
    context = AgentContext(workspace=str(tmp_path), role="nobody-knows")
    update = judge_calls(gateway, GuardSlice(items=[call("read_file", "a.py")], context=context))
    assert [(each.kind, each.rule) for each in update["verdicts"]] == [(VerdictKind.DENY, "role")]
