import pytest

from nodes.execute_tools.redact import MARK, Redactor
from nodes.execute_tools.registry import ToolOutput
from nodes.execute_tools.secrets.redacted_output import redacted
from nodes.records import ChangeKind, FileChange, Plan, PlanStep, ToolError, ToolErrorCode, ToolResult

SECRET = "xyzzy" + "-4711-plugh"
REDACTOR = Redactor([SECRET])


def change(path: str, diff: str) -> FileChange:
    return FileChange(path=path, kind=ChangeKind.EDITED, sha256_before="0" * 64, sha256_after="1" * 64, diff=diff)


def test_what_a_tool_found_is_freed_at_any_depth() -> None:
    output = ToolOutput.ok(path="a.py", content=f"key = '{SECRET}'\n", deep=[{"text": SECRET}, 3, None])
    expected = ToolOutput.ok(path="a.py", content=f"key = '{MARK}'\n", deep=[{"text": MARK}, 3, None])
    assert redacted(output, REDACTOR) == expected


def test_a_failure_is_freed_in_its_message_and_suggestions() -> None:
    error = ToolError(
        code=ToolErrorCode.INVALID_ARGUMENT, message=f"not {SECRET}", suggestions=("a", SECRET), fatal=True
    )
    clean = ToolError(code=ToolErrorCode.INVALID_ARGUMENT, message=f"not {MARK}", suggestions=("a", MARK), fatal=True)
    assert redacted(ToolOutput.failed(error), REDACTOR) == ToolOutput.failed(clean)


def test_diffs_and_plans_are_freed_and_paths_and_hashes_stay() -> None:
    def output(secret: str) -> ToolOutput:
        plan = Plan(steps=(PlanStep(title=f"set {secret}"),))
        return ToolOutput(ToolResult.success(), (change("a.py", f"-{secret}\n"),), {"a.py": "1" * 64}, plan)

    assert redacted(output(SECRET), REDACTOR) == output(MARK)


@pytest.mark.parametrize("text", ["token = tokenizer.next_token()", "max_tokens: 4096", "0" * 64])
def test_what_is_harmless_stays(text: str) -> None:
    output = ToolOutput(ToolResult.success(content=text), (change("a.py", text),))
    assert redacted(output, REDACTOR) == output


def test_a_result_that_cannot_be_looked_through_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Redactor, "content", lambda *_: MARK)
    assert redacted(ToolOutput.ok(content="x"), REDACTOR) == ToolOutput.ok(redacted=MARK)
