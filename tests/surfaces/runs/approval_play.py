"""A run whose one reply has two writes and a command, and answers to it; also in its own process."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mendgraph import AgentContext, Asked, Effect, Event, Session, ToolContext, ToolOutput, Traced, default_tools, tool
from tests.doubles.replies import Say
from tests.doubles.scripted_model import ScriptedModel
from tests.vocabulary import JsonMap

BUG = "def add(a, b):\n    return a - b\n"
THREE = """tool: edit_file({"path": "calc.py", "old_str": "a - b", "new_str": "a + b"})
tool: append_file({"path": "log.txt", "content": "one"})
tool: ring({"argv": ["bell", "loud"]})"""
QUESTION = 'tool: ask_user({"question": "Which colour?"})'
EDITED = {"path": "log.txt", "content": "two"}
ANSWER: JsonMap = {
    "decisions": {
        "0": {"action": "approve"},
        "1": {"action": "edit", "arguments": EDITED},
        "2": {"action": "reject", "reason": "too loud"},
    }
}
DEATHS = {"guarded": "Denied", "before": "ToolStarted", "after": "StepDone", "raised": "model.usage"}
AFTER = {"calc.py": BUG.replace("-", "+"), "log.txt": "two"}


@tool(effect=Effect.EXECUTE)
def ring(context: ToolContext, argv: list[str]) -> ToolOutput:
    """Start a program; each time leaves a mark."""
    with (Path(context.workspace.root).parent / "rung").open("a", encoding="utf-8") as marks:
        marks.write(f"{' '.join(argv)}\n")
    return ToolOutput.ok(exit_code=0)


def tools() -> tuple[Any, ...]:
    """The default tools, and a command that is counted."""
    return (*default_tools(), ring)


def session(root: Path, *replies: str, thread: str = "t", secrets: tuple[str, ...] = (), **context: Any) -> Session:
    """A session in mode "ask" on a model with these replies."""
    root.mkdir(exist_ok=True)
    settings = {"mode": "ask", "protocol": "text", "evidence": False, "read_ahead": False, **context}
    return Session(
        AgentContext(workspace=str(root), **settings),
        model=ScriptedModel([Say(reply) for reply in replies]),
        tools=tools(),
        thread_id=thread,
        secrets=secrets,
    )


def last(events: Iterator[Event]) -> Event:
    """The last event of a turn."""
    return list(events)[-1]


def requested_calls(events: Iterator[Event]) -> list[JsonMap]:
    """The calls that a person is asked about."""
    event = last(events)
    assert isinstance(event, Asked), event
    return list(event.request["calls"])


def files(root: Path) -> dict[str, str]:
    """The text of each file in the folder, by its name."""
    return {path.name: path.read_text(encoding="utf-8") for path in sorted(root.iterdir()) if path.is_file()}


def taken_up(argument: JsonMap) -> list[Any]:
    """Answer or resume in its own process, and die at `death`; returns the last event and the files.

    `guarded`: once the answer is judged; `before` and `after` an effect; `raised`: after a model call within a raised
    limit; `never`.
    """
    root, death = Path(argument["root"]), argument["death"]
    os.environ["MENDGRAPH_DATA_DIR"] = str(root.parent / "data")
    with session(root, "Done.") as now:
        answer = argument.get("answer", ANSWER)
        events = now.answer(answer) if argument["way"] == "answer" else now.resume()
        for event in events:
            name = event.name if isinstance(event, Traced) else type(event).__name__
            if name == DEATHS.get(death):
                os.kill(os.getpid(), signal.SIGKILL)
            end = event
        return [type(end).__name__, files(root)]
