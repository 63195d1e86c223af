"""Whole runs on a scripted model: what was seen of them, how they ended, and what the model was told."""

from pathlib import Path
from typing import Any

from mendgraph.graph.configuration.context import AgentContext
from mendgraph.graph.runs.events import Event
from mendgraph.graph.runs.run import RunResult, Session
from mendgraph.nodes.records import JsonMap, Protocol
from tests.doubles.replies import Say
from tests.doubles.scripted_model import ScriptedModel
from tests.doubles.tool_use import Use, message_of
from tests.workspace_files import write_files

FILES = {"long.txt": "".join(f"line {number}\n" for number in range(1, 1_201)), "calc.py": "x = 1\n"}
"""What the workspace of each run holds."""


def watch(
    folder: Path, protocol: Protocol, *replies: Use | Say, settings: JsonMap | None = None, **options: Any
) -> tuple[list[Event], RunResult, ScriptedModel]:
    """One turn in a new workspace. `settings` overrides the run's defaults, `options` are those of the session."""
    write_files(folder, FILES)
    model = ScriptedModel([message_of(reply, protocol) for reply in replies])
    context = AgentContext(workspace=str(folder), protocol=protocol.value, **(settings or {}))
    with Session(context, model=model, **options) as session:
        events = list(session.stream("Do it."))
        return events, session.result(), model
