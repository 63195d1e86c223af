"""Runs with much to report: approval requests, a healed reply, a loop, hostile text everywhere."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mendgraph import Asked, Session, ToolError
from tests.doubles.replies import Say
from tests.doubles.scripted_model import Line, ScriptedModel
from tests.surfaces.runs.run_plays import FILES, context, use
from tests.workspace_files import write_files

HOSTILE = (
    "<script>document.title='owned'</script>\"'><img src=x onerror=alert(1)></style></title><svg onload=alert(2)>"
    " {{ 7 * 7 }} {% raw %} ${7*7} &lt; --> ]]> \x1b[31mred\x07 \u202egnp.exe"
)
"""What a model, a file or a person may say to break out of a page."""

WIDE = "قلم رصاص اليوم 日本語の長い文字列 👩\u200d💻 \uff41\uff42\uff43 " + "w" * 300

MALFORMED: Line = Say('<tool_call>{"name": "read_file", "arguments": {"path": "calc.py"')
MENDED: tuple[Line, ...] = (
    MALFORMED,
    use(("read_file", {"path": "calc.py"}), ("read_file", {"path": "../secret"})),
    use(("edit_file", {"path": "calc.py", "old_str": "a - b", "new_str": "a + b"})),
    use(("write_file", {"path": "n.txt", "content": "x\n"})),
    use(("delete_file", {"path": "notes.txt"})),
    Say("It adds now."),
)
"""A call that is cut off, a denied call, an edit, two writes, and the answer."""

ANSWERS: Mapping[str, Mapping[str, Any]] = {
    "edit_file": {"action": "approve"},
    "write_file": {"action": "edit", "arguments": {"path": "n.txt", "content": "y\n"}},
    "delete_file": {"action": "reject", "reason": "keep the notes"},
}


def run_with_approvals(folder: Path, lines: Sequence[Line] = MENDED, **more: Any) -> str:
    """A run in mode ask, whose calls a person answers by their tools; its id."""
    folder.mkdir()
    write_files(folder, FILES)
    with Session(context(folder, mode="ask", **more), model=ScriptedModel(lines)) as session:
        event = session.work("Mend add.")
        while isinstance(event, Asked):
            calls = event.request["calls"]
            event = session.work_on({"decisions": {str(call["index"]): dict(ANSWERS[call["tool"]]) for call in calls}})
    return session.thread_id


def hostile_run(folder: Path, words: str = HOSTILE) -> str:
    """A run with these words in every text: request, calls, files, diffs, errors, answer; its id."""
    folder.mkdir()
    name = f"<img src=x onerror=alert(3)> {'&' * 3}.txt"
    write_files(folder, {**FILES, name: f"{words}\n</pre></details>old\n"})
    lines: tuple[Line, ...] = (
        use(("read_file", {"path": name}), ("read_file", {"path": f"{words[:40]}.md"})),
        use((f"{words[:30]}", {"path": words})),
        use(("edit_file", {"path": name, "old_str": "old", "new_str": f"new {words}"})),
        use(("search_files", {"pattern": words, "path": "."})),
        use(("update_plan", {"steps": [{"title": words[:150], "status": "done"}]})),
        Say(f"Done: {words}\n{WIDE}"),
    )
    with Session(context(folder, model=f"model {words[:40]}"), model=ScriptedModel(lines)) as session:
        session.work(f"Look at {words}")
    return session.thread_id


def page(result: str | ToolError) -> str:
    """The page; it must not be an error."""
    assert isinstance(result, str), result
    return result
