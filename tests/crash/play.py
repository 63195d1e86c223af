"""The run that is killed at every point: read, edit, write, patch two files and delete one, run a command, answer."""

import os
from typing import Any, Final

from mendgraph import (
    AgentContext,
    Effect,
    RunResult,
    Session,
    ToolContext,
    ToolError,
    apply_run,
    default_tools,
    list_runs,
    open_run,
    tool,
)
from mendgraph.documents import ToolErrorCode
from tests.doubles.history_model import HistoryModel
from tests.doubles.replies import Say
from tests.doubles.tool_use import message_of, use
from tests.vocabulary import Protocol

BEFORE: Final = {"a.txt": "one\ntwo\n", "b.txt": "b\n", "c.txt": "c\n", "d.txt": "d\n", "sub/keep.txt": "k\n"}
AFTER: Final = {"a.txt": "one\nTWO\n", "b.txt": "B\n", "c.txt": "C\n", "new/file.txt": "made\n", "sub/keep.txt": "k\n"}
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

FAILING: Final = (*LINES[:2], use(("judge", {})))
"""The same changes, which a check finds wrong: the run ends, and takes them back."""

TASK: Final = "Do all of it."


@tool(effect=Effect.READ)
def judge(_: ToolContext) -> ToolError:
    """Find the work wrong."""
    return ToolError(code=ToolErrorCode.CHECK_FAILED, message="It is wrong.")


def options(place: dict[str, str]) -> dict[str, Any]:
    """The model answers from the history, so that a resumed run gets the next reply."""
    lines = FAILING if "fails" in place else LINES
    return {
        "model": HistoryModel([message_of(line, Protocol.NATIVE) for line in lines]),
        "tools": (*default_tools(), judge),
    }


def begin(place: dict[str, str]) -> dict[str, Any]:
    _kept_in(place)
    context = AgentContext(
        workspace=place["root"],
        protocol="native",
        offer="all",
        allowed_programs=("sh",),
        max_calls_per_turn=20,
        max_failed_tries=1,
    )
    with Session(context, thread_id="play", **options(place)) as session:
        list(session.stream(TASK))
        return _summary(session.result())


def resume(place: dict[str, str]) -> dict[str, Any]:
    """Resume the run, or start it if it was never recorded."""
    _kept_in(place)
    if (session := recorded_session(place, options(place))) is None:
        return begin(place)
    with session:
        ended = "fails" in place and session._machine.get_state(session._config()).values.get("outcome")
        if not ended:  # otherwise it would be a new turn
            list(session.resume())
        return _summary(session.result())


def recorded_session(place: dict[str, str], options: dict[str, Any]) -> Session | None:
    """The session of the run, None if the run was never recorded."""
    runs = list_runs(place["root"])
    if isinstance(runs, ToolError) or not runs:
        return None
    session = open_run("play", place["root"], **options)
    assert not isinstance(session, ToolError), session.message
    return session


def again(place: dict[str, str]) -> dict[str, Any]:
    os.environ["MENDGRAPH_DATA_DIR"] = place["data"]
    done = apply_run("play", place["root"])
    return (
        {"error": done.message} if isinstance(done, ToolError) else {"applied": sorted(change.path for change in done)}
    )


def _kept_in(place: dict[str, str]) -> None:
    os.environ["MENDGRAPH_DATA_DIR"] = place["data"]
    os.environ["MENDGRAPH_STORE_URL"] = place.get("url", "")


def _summary(result: RunResult) -> dict[str, Any]:
    outcome = result.outcome
    return {
        "kind": outcome.kind.value,
        "reason": outcome.reason.value,
        "message": outcome.message,
        "restored": list(outcome.restored),
        "answer": outcome.answer,
        "history": [(message.type, message.text) for message in result.messages],
        "changed": sorted(change.path for change in result.changes),
    }
