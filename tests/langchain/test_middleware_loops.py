"""`LoopGuardMiddleware` in agents of LangChain and deepagents: a repeated call gets an override, then it ends."""

import json
from itertools import count
from typing import Any

import pytest
from langchain_core.tools import StructuredTool, ToolException
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.errors import GraphRecursionError

from mendgraph import AgentStoppedError, Effect, LoopGuardMiddleware
from tests.doubles.scripted_server import Calls, Say, ScriptedServer
from tests.extent import slow
from tests.langchain.agents import agent, ask, deep_agent, look, sync_and_async


def repeating(tool: str = "look", **arguments: str) -> ScriptedServer:
    return ScriptedServer(then=lambda _: Calls([(tool, json.dumps(arguments or {"path": "a.py"}))]))


@sync_and_async
def test_loop_gets_one_override_and_then_ends(loop: bool) -> None:
    with repeating() as server:
        agent_graph = agent(server, LoopGuardMiddleware(), checkpointer=InMemorySaver())
        for turn in (1, 2):  # each turn counts from its own start
            messages = ask(agent_graph, loop)
            results = [message for message in messages if message.type == "tool"][4 * turn - 4 :]
            looked, override, refused = results[1].text, results[2].text, json.loads(results[3].text)
            assert looked == "a.py has three lines."
            assert override.startswith(looked)
            assert json.loads(override.removeprefix(looked))["override"]["kind"] == "loop_override"
            assert refused["error"]["code"] == "loop_override"
            assert "The same call was made 4 times with the same arguments: look on 'a.py'." in messages[-1].text
            assert messages[-1].response_metadata["stop"]["reason"] == "loop_persisted"


def test_parallel_repeated_calls_are_one_loop_and_the_end_can_be_an_exception() -> None:
    with ScriptedServer(then=lambda _: Calls([("look", '{"path": "a.py"}'), ("look", '{"path": "./a.py"}')])) as server:
        guard = LoopGuardMiddleware(exit_behavior="error")
        with pytest.raises(AgentStoppedError, match=r"look on 'a\.py'") as stopped:
            ask(agent(server, guard))
    assert stopped.value.cause.reason == "loop_persisted"
    assert len(server.requests) == 3


@slow
def test_call_with_a_changing_result_and_a_single_repetition_are_no_loop() -> None:
    states = count()

    def state() -> str:
        """The state of a job."""
        return f"{next(states)} parts are done"

    poll = Calls([("state", "{}")])
    read, other = Calls([("look", '{"path": "a.py"}')]), Calls([("look", '{"path": "b.py"}')])
    with ScriptedServer([*[poll] * 5, *[read] * 3, other, read, Say("Done.")]) as server:
        assert ask(agent(server, LoopGuardMiddleware(), tools=[look, state]))[-1].text == "Done."


@slow
def test_write_is_progress_only_if_its_effect_is_declared() -> None:
    def save(text: str) -> str:
        """Save a text."""
        return f"saved {len(text)} characters"

    read, numbers = Calls([("look", '{"path": "a.py"}')]), count()
    work = [*[read] * 3, Calls([("save", f'{{"text": "{next(numbers)}"}}')])]
    with ScriptedServer([*work, *work, Say("Done.")]) as server:
        guard = LoopGuardMiddleware(effects={"save": Effect.WRITE})
        assert ask(agent(server, guard, tools=[look, save]))[-1].text == "Done."
    with ScriptedServer([*work, *work, Say("Done.")]) as server:
        assert "look on 'a.py'" in ask(agent(server, LoopGuardMiddleware(), tools=[look, save]))[-1].text


def test_failed_write_is_not_progress() -> None:
    def save(text: str) -> str:
        """Save a text."""
        raise ToolException(f"no room for {text}")

    saving = StructuredTool.from_function(save, handle_tool_error=True)
    read = Calls([("look", '{"path": "a.py"}')])
    with ScriptedServer([*[read] * 3, Calls([("save", '{"text": "x"}')]), read, read, Say("Done.")]) as server:
        guard = LoopGuardMiddleware(effects={"save": Effect.WRITE})
        assert "look on 'a.py'" in ask(agent(server, guard, tools=[look, saving]))[-1].text


@slow
@sync_and_async
def test_deep_agent_in_a_loop_ends_only_with_the_middleware(loop: bool) -> None:
    with repeating("read_file", file_path="/a.py") as server:
        with pytest.raises(GraphRecursionError):
            ask(deep_agent(server), loop)

        server.requests.clear()
        guarded: Any = deep_agent(server, LoopGuardMiddleware())
        assert "read_file on '/a.py'" in ask(guarded, loop)[-1].text
    assert len(server.requests) == 4
