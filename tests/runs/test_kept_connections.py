"""Runs against an endpoint that keeps its connections open, from sync code, from event loops, and from both."""

import asyncio
from collections.abc import Callable
from pathlib import Path

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
