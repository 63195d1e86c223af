"""What the embedded model really said, and what the machine made of it.

`make record` asks it again; its weights are found as always (`mendgraph model status`).
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import pytest

from mendgraph import AgentContext, run_task
from mendgraph.nodes.call_model.local_model import shared_local_server
from mendgraph.nodes.call_model.weights import embedded_weights
from mendgraph.nodes.records import OutcomeKind, Protocol, ProviderFailure, StopReason
from tests import network
from tests.cassettes import Endpoint, Live, Origin, cassette
from tests.runs.history import history_problems
from tests.scenarios.sample_repair import CALC, TASK
from tests.workspace_files import changed_files, write_files

pytestmark = [pytest.mark.local_model] if network.is_recording() else []

Check = Callable[[dict[str, str]], bool]


@dataclass(frozen=True)
class Told:
    """A task for the local model: the workspace, and what its changed files have to be like in the end."""

    cassette: str
    task: str
    files: dict[str, str]
    mended: Check


def adds(changed: dict[str, str]) -> bool:
    """Whether calc.py alone has changed, and adds."""
    namespace: dict[str, Callable[[int, int], int]] = {}
    exec(changed["calc.py"], {}, namespace)  # noqa: S102 - what a replayed cassette wrote, in a test
    return set(changed) == {"calc.py"} and namespace["add"](2, 3) == 5


SETTINGS = '{\n  "host": "localhost",\n  "timeout_s": 10,\n  "retries": 3\n}\n'

TOLD = (
    Told("bug_repaired/local_blocks", TASK, CALC, adds),
    Told("question/local_blocks", "What is a mutex? Answer in one sentence.", CALC, lambda changed: not changed),
    Told(
        "no_file_named/local_blocks",
        "The add function is wrong: it subtracts. Find it and fix it.",
        {**CALC, "names.py": 'def greet(name):\n    return f"Hello, {name}!"\n'},
        adds,
    ),
    Told(
        "constant_in_json/local_blocks",
        "Set timeout_s in settings.json to 30.",
        {"settings.json": SETTINGS},
        lambda changed: changed == {"settings.json": SETTINGS.replace("10", "30")},
    ),
)


@pytest.mark.parametrize("told", TOLD, ids=lambda told: told.cassette)
def test_local_model_gets_it_done(told: Told, tmp_path: Path) -> None:
    write_files(tmp_path, told.files)
    with cassette(told.cassette, Live(Origin.LOCAL_MODEL, local_model)) as tape:
        context = AgentContext(
            workspace=str(tmp_path),
            model=embedded_weights().model,
            base_url=tape.base_url,
            protocol="text",
            edit_form="blocks",
        )
        result = run_task(told.task, context)
        assert (result.outcome.kind, result.outcome.reason) == (OutcomeKind.FINISHED, StopReason.ANSWERED)
        assert told.mended(changed_files(tmp_path, told.files))
    assert history_problems(result.messages, Protocol.TEXT) == []


@contextmanager
def local_model() -> Iterator[Endpoint]:
    """The embedded model's server, or the reason why there is none."""
    server = shared_local_server()
    assert not isinstance(server, ProviderFailure), server
    yield SimpleNamespace(base_url=server.base_url)
