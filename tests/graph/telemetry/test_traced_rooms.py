"""What the rooms decide, as events of the run's span."""

import asyncio
from pathlib import Path

import pytest
from opentelemetry.trace import StatusCode

from graph.events import Asked
from graph.run import Session, run_task
from tests.doubles.scripted_server import Calls, Say, ScriptedServer
from tests.graph.telemetry.conftest import Told, context
from tests.runs.playing import write_files

READ = Calls([("read_file", '{"path": "a.txt"}')])


def events(told: Told) -> list[tuple[str, dict[str, object]]]:
    agent = told.named("invoke_agent mendgraph")
    return [(event.name, dict(event.attributes or {})) for event in agent.events]


def test_a_denied_call_is_an_event_and_no_tool(tmp_path: Path, told: Told) -> None:
    with ScriptedServer([Calls([("read_file", '{"path": ".env"}')]), Say("Done.")]) as server:
        run_task("Look.", context(tmp_path, server.base_url))
    ((name, attributes),) = events(told)
    assert (name, attributes["gen_ai.tool.name"]) == ("mendgraph.call.denied", "read_file")
    assert (attributes["mendgraph.rule"], attributes["error.type"]) == ("env_file", "permission_denied")
    assert ".env" not in told.text()
    assert told.names() == ["invoke_agent mendgraph", "chat m", "chat m"]


def test_a_reply_that_is_asked_for_again_is_an_event(tmp_path: Path, told: Told) -> None:
    with ScriptedServer([Calls([("read_file", '{"path": ')]), Say("Done.")]) as server:
        run_task("Look.", context(tmp_path, server.base_url))
    ((name, attributes),) = events(told)
    assert (name, attributes["mendgraph.healing.attempt"]) == ("mendgraph.reply.healing", 1)
    assert attributes["mendgraph.healing.errors"]


def test_a_reply_that_is_read_as_it_is_is_an_event(tmp_path: Path, told: Told) -> None:
    write_files(tmp_path, {"a.txt": "one\n"})
    said = Say('```json\n{"name": "read_file", "arguments": {"path": "a.txt"}}\n```')
    with ScriptedServer([said, Say("Done.")]) as server:
        run_task("Look.", context(tmp_path, server.base_url))
    assert events(told) == [("mendgraph.reply.rescued", {})]


def test_an_action_that_comes_too_often_is_an_event(tmp_path: Path, told: Told) -> None:
    write_files(tmp_path, {"a.txt": "one\n"})
    with ScriptedServer([READ, READ, READ, Say("Done.")]) as server:
        run_task("Look.", context(tmp_path, server.base_url))
    overridden = [attributes for name, attributes in events(told) if name == "mendgraph.loop.override"]
    assert overridden == [{"gen_ai.tool.name": "read_file", "mendgraph.loop.repeats": 3}]


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_run_that_asks_waits_and_its_answer_is_a_span_of_its_own(
    asynchronous: bool, tmp_path: Path, told: Told
) -> None:
    write = Calls([("write_file", '{"path": "b.txt", "content": "two"}')])

    async def later(session: Session) -> None:
        assert isinstance([event async for event in session.astream("Write.")][-1], Asked)
        assert [event async for event in session.aanswer("approve")]
        await session.aclose()

    with ScriptedServer([write, Say("Done.")]) as server:
        session = Session(context(tmp_path, server.base_url, mode="ask"), thread_id="t")
        if asynchronous:
            asyncio.run(later(session))
        else:
            with session:
                assert isinstance(session.work("Write."), Asked)
                session.work_on("approve")
    agents = [span for span in told.spans if span.name == "invoke_agent mendgraph"]
    assert [(each.attributes or {}).get("mendgraph.waiting_for_approval") for each in agents] == [True, None]
    assert [(each.attributes or {})["gen_ai.conversation.id"] for each in agents] == ["t", "t"]
    assert agents[0].status.status_code is StatusCode.UNSET
    assert [event.name for event in agents[0].events] == ["mendgraph.approval.asked"]
    assert (tmp_path / "b.txt").read_text(encoding="utf-8") == "two"


def test_a_limit_ends_a_run_without_an_error(tmp_path: Path, told: Told) -> None:
    write_files(tmp_path, {"a.txt": "one\n"})
    with ScriptedServer([READ]) as server:
        run_task("Look.", context(tmp_path, server.base_url, max_calls_per_turn=1))
    agent = told.named("invoke_agent mendgraph")
    assert (agent.attributes or {})["mendgraph.outcome.reason"] == "max_calls_per_turn"
    assert agent.status.status_code is StatusCode.UNSET
