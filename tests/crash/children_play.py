"""A run that delegates to two writers and an explorer, in its own process, which is killed and resumed."""

import os
from pathlib import Path
from typing import Any, Final

from mendgraph import AgentContext, Session, ToolError, undo_run
from tests.crash.play import recorded_session
from tests.doubles.replies import Say
from tests.doubles.task_model import TaskModel
from tests.doubles.tool_use import use

USED: Final = (100, 10)
"""Tokens of each call."""

MOST_CALLS: Final = 24
BEFORE: Final = {"a.txt": "a\n", "sub/b.txt": "b\n", "keep.txt": "k\n"}
AFTER: Final = {"a.txt": "A\n", "sub/b.txt": "B\n", "sub/new.txt": "made\n", "keep.txt": "k\n", "end.txt": "end\n"}

LINES: Final = {
    "MAIN": (
        use(
            ("delegate", {"task": "LOOK into keep.txt"}),
            ("delegate", {"task": "ONE change a.txt", "mode": "write", "paths": ["a.txt"]}),
            ("delegate", {"task": "TWO change sub", "mode": "write", "paths": ["sub/"]}),
            usage=USED,
        ),
        use(("write_file", {"path": "end.txt", "content": "end\n"}), usage=USED),
        Say("All done.", usage=USED),
    ),
    "LOOK": (use(("read_file", {"path": "keep.txt"}), usage=USED), Say("It holds k.", usage=USED)),
    "ONE": (
        use(("edit_file", {"path": "a.txt", "old_str": "a", "new_str": "A"}), usage=USED),
        Say("Changed.", usage=USED),
    ),
    "TWO": (
        use(("edit_file", {"path": "sub/b.txt", "old_str": "b", "new_str": "B"}), usage=USED),
        use(("write_file", {"path": "sub/new.txt", "content": "made\n"}), usage=USED),
        Say("Changed as well.", usage=USED),
    ),
}


def options(place: dict[str, str]) -> dict[str, Any]:
    """The model; each of its calls leaves a mark in a file, whatever becomes of the process."""

    def mark(task: str, _: int) -> None:
        with Path(place["marks"]).open("a", encoding="utf-8") as marks:
            marks.write(f"{task}\n")

    return {"model": TaskModel(LINES, mark)}


def plain_context(place: dict[str, str], **more: Any) -> AgentContext:
    """A context in which only the model's calls run."""
    return AgentContext(workspace=place["root"], protocol="native", evidence=False, read_ahead=False, **more)


def begin(place: dict[str, str]) -> dict[str, Any]:
    os.environ["MENDGRAPH_DATA_DIR"] = place["data"]
    limits = {"max_calls_per_turn": MOST_CALLS, "max_input_tokens_per_session": 100_000}
    with Session(plain_context(place, delegation=True, **limits), thread_id="play", **options(place)) as session:
        list(session.stream("MAIN do all of it"))
        return summary(session)


def resume(place: dict[str, str]) -> dict[str, Any]:
    """Resume the run, or start it if it was never recorded."""
    os.environ["MENDGRAPH_DATA_DIR"] = place["data"]
    if (session := recorded_session(place, options(place))) is None:
        return begin(place)
    with session:
        list(session.resume())
        return summary(session)


def undo(place: dict[str, str]) -> bool:
    """Undo its changes and those of its children."""
    os.environ["MENDGRAPH_DATA_DIR"] = place["data"]
    return not isinstance(undo_run("play", place["root"]), ToolError)


def summary(session: Session) -> dict[str, Any]:
    result = session.result()
    return {
        "kind": result.outcome.kind.value,
        "message": result.outcome.message,
        "answer": result.answer,
        "results": [message.text for message in result.messages if message.type == "tool"],
        "changed": sorted(result.outcome.changed_files),
        "usage": session.usage(),
    }
