"""Runs against an endpoint that keeps its connections open, from sync code, from event loops, and from both."""

import asyncio
import socket
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from threading import Event, Thread

import pytest

from mendgraph import AgentContext, arun_task, run_task
from mendgraph.nodes.records import OutcomeKind
from tests.doubles.scripted_server import Calls, Say, ScriptedServer

REPLIES = (Calls([("read_file", '{"path": "a.py"}')]), Say("It assigns x."))

Run = Callable[[AgentContext], OutcomeKind]


def sync_run(context: AgentContext) -> OutcomeKind:
    return run_task("What does a.py assign?", context).outcome.kind


def async_run(context: AgentContext) -> OutcomeKind:
    """A run in an event loop of its own, which ends with the run."""
    return asyncio.run(arun_task("What does a.py assign?", context)).outcome.kind


def two_runs_in_one_loop(context: AgentContext) -> OutcomeKind:
    async def runs() -> OutcomeKind:
        await arun_task("What does a.py assign?", context)
        return (await arun_task("What does a.py assign?", context)).outcome.kind

    return asyncio.run(runs())


@pytest.mark.parametrize(
    "runs",
    [
        (sync_run, sync_run),
        (async_run, async_run),
        (sync_run, async_run, sync_run),
        (async_run, sync_run, async_run),
        (two_runs_in_one_loop, sync_run),
    ],
    ids=["sync", "async", "sync-async-sync", "async-sync-async", "two in one loop-sync"],
)
def test_runs_on_kept_connections_finish(
    runs: tuple[Run, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.py").write_text("x = 1\n")
    monkeypatch.setenv("OPENAI_API_KEY", "sk-loopback")

    def reply(request: dict[str, object]) -> Calls | Say:
        """A call first, the answer behind its result, in whatever order the runs come."""
        messages = request["messages"]
        assert isinstance(messages, list)
        return REPLIES[1] if messages[-1]["role"] == "tool" else REPLIES[0]

    with ScriptedServer(then=reply, key="sk-loopback") as server:
        context = AgentContext(
            workspace=str(tmp_path), base_url=server.base_url, model="m", protocol="native", read_ahead=False
        )
        kinds = [run(context) for run in runs]

    assert kinds == [OutcomeKind.FINISHED] * len(runs)
    assert 0 < server.connections < len(server.requests)


class SilentEndpoint:
    """An endpoint that takes one request, never answers, and knows when the client has closed the connection."""

    def __init__(self) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.base_url = f"http://127.0.0.1:{self._socket.getsockname()[1]}/v1"
        self.client_closed = Event()
        Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        with self._socket, self._socket.accept()[0] as connection, suppress(ConnectionError):
            while connection.recv(65_536):
                pass
        self.client_closed.set()


@pytest.mark.parametrize("run", [sync_run, async_run], ids=["sync", "async"])
def test_request_abandoned_at_its_deadline_closes_its_connection(run: Run, tmp_path: Path) -> None:
    endpoint = SilentEndpoint()
    context = AgentContext(
        workspace=str(tmp_path), base_url=endpoint.base_url, model="m", request_timeout_s=0.2, provider_retries=0
    )
    assert run(context) == OutcomeKind.SYSTEM_ERROR
    assert endpoint.client_closed.wait(30)
