"""The run that is killed at every point: read, edit, write, patch two files and delete one, run a command, answer."""

import os
from typing import Any, Final

from mendgraph.graph.configuration.context import AgentContext
from mendgraph.graph.runs.run import RunResult, Session
from mendgraph.graph.runs.runs import list_runs, open_run
from mendgraph.nodes.execute_tools.store.run_folder import DATA_DIR_VARIABLE
from mendgraph.nodes.records import Protocol, ToolError
from tests.doubles.history_model import HistoryModel
from tests.doubles.replies import Say
from tests.runs.scenario import message_of, use

BEFORE: Final = {"a.txt": "one\ntwo\n", "b.txt": "b\n", "c.txt": "c\n", "d.txt": "d\n", "sub/keep.txt": "k\n"}
AFTER: Final = {
    "a.txt": "one\nTWO\n",
    "b.txt": "B\n",
    "c.txt": "C\n",
    "new/file.txt": "made\n",
    "sub/keep.txt": "k\n",
}
COMMANDED: Final = "ran.txt"
"""The command adds a line to it."""

PATCH: Final = """*** Begin Patch
*** Update File: b.txt
@@
-b
+B
*** Update File: c.txt
@@
-c
+C
*** Delete File: d.txt
*** End Patch
"""

LINES: Final = (
    use(("read_file", {"path": "a.txt"}), ("edit_file", {"path": "a.txt", "old_str": "two", "new_str": "TWO"})),
    use(
        ("read_file", {"path": "b.txt"}),
        ("write_file", {"path": "new/file.txt", "content": "made\n"}),
        ("apply_patch", {"patch": PATCH}),
    ),
    use(("run_command", {"argv": ["sh", "-c", f"echo ran >> {COMMANDED}"]})),
    Say("All done."),
)
"""Few replies, so that there are not too many points; several calls in one, so that a step is cut off in its middle."""

TASK: Final = "Do all of it."


def model() -> HistoryModel:
    """It answers by the history, so that a resumed run hears what comes next."""
    return HistoryModel([message_of(line, Protocol.NATIVE) for line in LINES])


def begin(place: dict[str, str]) -> dict[str, Any]:
    """The run, from its first word."""
    os.environ[DATA_DIR_VARIABLE] = place["data"]
    context = AgentContext(
        workspace=place["root"], protocol="native", offer="all", allowed_programs=("sh",), max_calls_per_turn=20
    )
    with Session(context, model=model(), thread_id="play") as session:
        list(session.stream(TASK))
        return _told(session.result())


def resume(place: dict[str, str]) -> dict[str, Any]:
    """The one command that goes on; where the run was never written down, that is to begin it."""
    os.environ[DATA_DIR_VARIABLE] = place["data"]
    runs = list_runs(place["root"])
    if isinstance(runs, ToolError) or not runs:
        return begin(place)
    session = open_run("play", place["root"], model=model())
    assert not isinstance(session, ToolError), session.message
    with session:
        list(session.resume())
        return _told(session.result())


def _told(result: RunResult) -> dict[str, Any]:
    outcome = result.outcome
    return {
        "kind": outcome.kind.value,
        "reason": outcome.reason.value,
        "message": outcome.message,
        "answer": outcome.answer,
        "history": [(message.type, message.text) for message in result.messages],
        "changed": sorted(change.path for change in result.changes),
    }
