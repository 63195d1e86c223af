"""`RunResult`: what a program gets from a run that has ended."""

import hashlib
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

from mendgraph.graph.configuration.context import AgentContext
from mendgraph.graph.runs.run import run_task
from mendgraph.graph.runs.run_result import RunResult, net_diffs
from mendgraph.nodes.execute_tools.edits.diffs import unified_diff
from mendgraph.nodes.records import ChangeKind, FileChange, Outcome, OutcomeKind, Plan, StopReason
from tests.doubles.replies import Say
from tests.doubles.scripted_model import ScriptedModel
from tests.doubles.tool_use import Use, message_of, use
from tests.extent import slow
from tests.scenarios.sample_repair import CALC, DONE, EDIT, READ, TASK
from tests.vocabulary import Protocol
from tests.workspace_files import write_files

END: tuple[Use | Say, ...] = (DONE,)
BACK = ("edit_file", {"path": "calc.py", "old_str": "a + b", "new_str": "b + a"})


def run_replies(folder: Path, *replies: Use, **more: Any) -> RunResult:
    write_files(folder, CALC)
    model = ScriptedModel([message_of(reply, Protocol.NATIVE) for reply in [*replies, *END]])
    return run_task(TASK, AgentContext(workspace=str(folder), evidence=False, read_ahead=False, **more), model=model)


@slow
def test_result_has_the_net_changes_of_the_run(tmp_path: Path) -> None:
    once = run_replies(tmp_path / "once", use(READ), use(EDIT))
    assert (once.ok, once.answer, once.changed_files) == (True, "add now adds.", ("calc.py",))
    assert (once.run_id, once.resumable, once.diff) == (once.thread_id, False, once.changes[0].diff)
    assert (once.usage["total_calls"], once.usage["cost_usd"]) == (3, None)
    twice = run_replies(tmp_path / "twice", use(READ), use(EDIT), use(BACK))
    assert (len(twice.changes), twice.diff) == (2, once.diff.replace("a + b", "b + a"))
    undone = ("edit_file", {"path": "calc.py", "old_str": "a + b", "new_str": "a - b"})
    assert run_replies(tmp_path / "undone", use(READ), use(EDIT), use(undone)).diff == ""


def test_result_is_one_printable_line_and_html_in_a_notebook() -> None:
    message = "It failed:\n\x1b[31mred\x07" + "x" * 300
    failed = Outcome(kind=OutcomeKind.SYSTEM_ERROR, reason=StopReason.PROVIDER_FAILED, message=message)
    line = str(RunResult(failed.model_copy(update={"changed_files": ("a.py", "b\n.py")}), (), (), Plan(), "run-1"))
    assert line.startswith("SYSTEM_ERROR (provider_failed): It failed: \\x1b[31mred\\x07xxx")
    assert (line.endswith("... [run run-1]"), line.isprintable()) == (True, True)
    assert str(RunResult(failed, (), (), Plan(), "run-1")).endswith("... [no file changed; run run-1]")

    done = Outcome(kind=OutcomeKind.FINISHED, reason=StopReason.ANSWERED, message="<b>", usage={"total_calls": 1})
    result = RunResult(done, (), (), Plan(), "run-1", (unified_diff("a.py", "x <y>\n", "z\x1b\n" + "+" * 9_000),))
    assert repr(result) == "<RunResult FINISHED (answered) changed_files=() run_id='run-1'>"
    page = result._repr_html_()
    assert page.startswith("<p>FINISHED (answered): &lt;b&gt;")
    assert ('<span style="color: #cf222e">-x &lt;y&gt;</span>' in page, "z\\x1b" in page) == (True, True)
    assert page.endswith(" more characters are not shown here)</pre>")
    assert len(page) < 9_500


def test_answer_that_the_message_contains_is_not_repeated() -> None:
    message = "Changed a.py; 2 tests pass."
    done = Outcome(kind=OutcomeKind.FINISHED, reason=StopReason.ANSWERED, message=message, answer="Changed a.py.")
    result = RunResult(done, (), (), Plan(), "run-1")
    assert str(result) == "FINISHED (answered): Changed a.py; 2 tests pass. [run run-1]"


def sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def change(before: str | None, after: str, path: str = "calc.py") -> FileChange:
    return FileChange(
        path=path,
        kind=ChangeKind.CREATED if before is None else ChangeKind.EDITED,
        sha256_before="" if before is None else sha256(before),
        sha256_after=sha256(after),
        diff=unified_diff(path, before, after),
    )


def changes(*texts: str | None) -> list[FileChange]:
    return [change(before, after or "") for before, after in pairwise(texts)]


def reader_of(*texts: str | None) -> Callable[[str, str], bytes | None]:
    texts_by_hash = {sha256(text): text.encode() for text in texts if text is not None}
    return lambda _, digest: texts_by_hash.get(digest)


WINDOWS = "a\r\nb\r\n"


def test_file_with_only_changed_line_ends_says_so() -> None:
    assert net_diffs(changes(WINDOWS, "a\nb\n"), reader_of(WINDOWS, "a\nb\n")) == ["calc.py: line ends changed\n"]


def test_change_without_stored_text_is_shown_as_recorded() -> None:
    recorded = changes("1\n", "2\n", "3\n")
    as_recorded = [recorded[0].diff + recorded[1].diff]
    assert net_diffs(recorded, reader_of("1\n", "2\n")) == as_recorded
    assert net_diffs(recorded, reader_of("2\n", "3\n")) == as_recorded
    assert net_diffs(recorded, lambda *_: b"\xff") == as_recorded
    gone = recorded[1].model_copy(update={"sha256_after": "", "diff": "gone\n"})
    assert net_diffs([recorded[0], gone], reader_of("1\n", "2\n")) == [recorded[0].diff + "gone\n"]
