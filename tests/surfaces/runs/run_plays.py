"""A run of five steps, complete or interrupted, and its state afterwards."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from mendgraph.graph.configuration.context import AgentContext
from mendgraph.graph.machine.build import build_graph
from mendgraph.graph.persistence.store import Store
from mendgraph.graph.runs.events import StepDone
from mendgraph.graph.runs.run import RunResult, Session, run_task
from mendgraph.graph.runs.runs import RunState, list_runs
from mendgraph.nodes.call_model.model import Call
from mendgraph.nodes.records import ModelReply, ProviderErrorKind, ProviderFailure, ToolError
from tests.doubles.history_model import HistoryModel
from tests.doubles.replies import Calls, Say
from tests.doubles.scripted_model import Line
from tests.workspace_files import write_files

FILES = {"calc.py": "def add(a, b):\n    return a - b\n", "notes.txt": "old\n"}
PATCH = """*** Begin Patch
*** Update File: calc.py
@@
-    return a + b
+    return a + b  # sum
*** Add File: docs/calc.md
+# calc
*** End Patch"""


def use(*calls: tuple[str, Mapping[str, Any]]) -> Line:
    return Calls([(tool, json.dumps(arguments)) for tool, arguments in calls])


EDIT = use(("edit_file", {"path": "calc.py", "old_str": "a - b", "new_str": "a + b"}))
LINES: tuple[Line, ...] = (
    use(("read_file", {"path": "calc.py"}), ("read_file", {"path": "notes.txt"})),
    EDIT,
    use(("write_file", {"path": "pkg/new.py", "content": "x = 1\n"})),
    use(("apply_patch", {"patch": PATCH})),
    use(("delete_file", {"path": "notes.txt"})),
    Say("It adds now."),
)
"""Five steps and an answer."""

DOWN = ProviderFailure(kind=ProviderErrorKind.AUTHENTICATION, message="The endpoint refuses the key.")
Tree = dict[str, tuple[bytes, int]]


class Killed(BaseException):
    """The process is killed: the end of the run is not recorded."""


class KilledModel(HistoryModel):
    """A model whose process is killed once the conversation has this many replies."""

    def __init__(self, lines: tuple[Line, ...], dies_at: int) -> None:
        super().__init__(lines)
        self._dies_at = dies_at

    def complete(self, call: Call, on_text: Callable[[str], None]) -> ModelReply | ProviderFailure:
        if sum(message["role"] == "assistant" for message in call.prompt.messages) == self._dies_at:
            raise Killed
        return super().complete(call, on_text)


def project(path: Path) -> Path:
    """A folder with the files that the run is about."""
    path.mkdir()
    write_files(path, FILES)
    (path / "notes.txt").chmod(0o640)
    return path


def context(folder: Path, **more: Any) -> AgentContext:
    """A run whose only calls are the model's."""
    return AgentContext(workspace=str(folder), evidence=False, read_ahead=False, **more)


def run_lines(folder: Path, lines: tuple[Line, ...] = LINES, **more: Any) -> RunResult:
    return run_task("Mend add.", context(folder, **more), model=HistoryModel(lines))


def killed_run(folder: Path, dies_at: int = 2, **options: Any) -> str:
    """A run that dies in a model call, and its id."""
    with Session(context(folder), model=KilledModel(LINES, dies_at), **options) as session, pytest.raises(Killed):
        list(session.stream("Mend add."))
    return session.thread_id


def tree(folder: Path) -> Tree:
    """All files with their bytes and modes, and all directories."""
    return {
        path.relative_to(folder).as_posix(): (path.read_bytes() if path.is_file() else b"/", path.stat().st_mode)
        for path in folder.rglob("*")
    }


def list_states(folder: Path) -> list[tuple[str, RunState]]:
    runs = list_runs(folder)
    assert not isinstance(runs, ToolError), runs
    return [(run.run_id, run.standing) for run in runs]


def state_of(folder: Path, run_id: str) -> Mapping[str, Any]:
    store = Store(str(folder))
    try:
        return build_graph(store.saver).get_state({"configurable": {"thread_id": run_id}}).values
    finally:
        store.close()


def error(result: object) -> ToolError:
    assert isinstance(result, ToolError), result
    return result


def record_trees(folder: Path) -> tuple[list[Tree], str]:
    """The tree after each step of a whole run, and its id."""
    trees = [tree(folder)]
    with Session(context(folder), model=HistoryModel(LINES)) as session:
        trees += [tree(folder) for event in session.stream("Mend add.") if isinstance(event, StepDone)]
    return trees, session.thread_id
