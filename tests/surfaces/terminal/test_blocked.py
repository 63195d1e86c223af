"""Code that blocks anywhere: in Python, in the kernel, or in C with the global interpreter lock."""

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from functools import partial
from io import StringIO
from pathlib import Path

import pytest

from mendgraph import AgentContext, Session
from mendgraph.graph import cli
from mendgraph.graph.machine import build as compiled
from mendgraph.graph.terminal.process_end import ExitCode
from tests.doubles.replies import Say
from tests.doubles.scripted_model import ScriptedModel
from tests.doubles.scripted_server import ScriptedServer
from tests.doubles.tool_use import message_of, use
from tests.extent import slow
from tests.surfaces.terminal import blocking_play
from tests.surfaces.terminal.blocking_play import BEGUN, HOW, NODE_S, WHERE
from tests.surfaces.terminal.stopping import start_command
from tests.vocabulary import Protocol
from tests.workspace_files import write_files

LISTING = message_of(use(("list_files", {"path": "."})), Protocol.NATIVE)
STUCK = -signal.SIGPROF


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write_files(tmp_path / "root", {"a.py": "a = 1\n"})
    return tmp_path / "root"


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    with ScriptedServer([LISTING], then=lambda _: Say("Done.")) as serving:
        yield serving


def play(how: str, where: str) -> Callable[[], int]:
    return partial(blocking_play.main, how, where)


def wait_until_it_blocks(root: Path) -> None:
    deadline = time.monotonic() + 60
    while not (root.parent / BEGUN).exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert (root.parent / BEGUN).exists()


@pytest.fixture
def resumed(root: Path, server: ScriptedServer, monkeypatch: pytest.MonkeyPatch) -> Callable[[], str]:
    """What a resume of the run says, in this process."""

    def resume_in_terminal() -> str:
        monkeypatch.chdir(root)
        monkeypatch.setenv("MENDGRAPH_DATA_DIR", str(root.parent / "data"))
        monkeypatch.setenv("OPENAI_API_KEY", "k")
        monkeypatch.setenv("OPENAI_BASE_URL", server.base_url)
        with redirect_stdout(StringIO()) as out:
            assert cli.main(["resume"]) == ExitCode.FINISHED
        return out.getvalue()

    return resume_in_terminal


def test_blocked_tool_ends_at_the_time_limit(root: Path, server: ScriptedServer) -> None:
    words = ("--max-seconds", "5", "Look here.")
    with start_command(root, server.base_url, *words, main=play("kernel", "tool")) as running:
        assert running.end() == ExitCode.BUDGET_STOP
    assert "BUDGET_STOP (wall_clock)" in running.err


@slow
def test_blocked_node_ends_at_its_timeout(root: Path, server: ScriptedServer, resumed: Callable[[], str]) -> None:
    with start_command(root, server.base_url, "Look here.", main=play("python", "guard")) as running:
        assert running.end() == ExitCode.SYSTEM_ERROR
    assert f"The step guard did not end within {NODE_S} s: `mendgraph resume` tries it again." in running.err
    assert "Done." in resumed()


def test_uninterruptible_code_ends_with_the_process(
    root: Path, server: ScriptedServer, resumed: Callable[[], str]
) -> None:
    with start_command(root, server.base_url, "Look here.", main=play("c", "tool")) as running:
        assert running.end() == STUCK
    assert "in in_c" in running.err
    assert "Done." in resumed()


@slow
@pytest.mark.parametrize(
    ("where", "number", "code"),
    [("tool", signal.SIGINT, ExitCode.INTERRUPTED), ("view", signal.SIGTERM, ExitCode.TERMINATED)],
)
def test_second_signal_ends_the_process(
    root: Path, server: ScriptedServer, resumed: Callable[[], str], where: str, number: signal.Signals, code: ExitCode
) -> None:
    with start_command(root, server.base_url, "Look here.", main=play("kernel", where)) as running:
        wait_until_it_blocks(root)
        running.send(number)
        time.sleep(0.5)  # two signals at once count as one
        running.send(number)
        assert running.end() == code
    assert "continue with: mendgraph resume" in running.err
    assert "Done." in resumed()


def test_blocked_node_ends_in_the_main_thread_of_a_program_too(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place, name = WHERE["guard"]
    monkeypatch.setattr(compiled, "NODE_S", 0.2)
    monkeypatch.setattr(place, name, lambda *_: HOW["python"]())
    with Session(AgentContext(workspace=str(root), protocol="native"), model=ScriptedModel([LISTING])) as session:
        session.work("Look.")
        outcome = session.result().outcome
    assert (outcome.kind, outcome.reason) == ("SYSTEM_ERROR", "wall_clock")
