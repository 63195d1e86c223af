"""What LangChain's callbacks see of a run: the replies of the conversation, without secrets; and what hosts see."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import AIMessageChunk, HumanMessage

from mendgraph.graph.configuration.context import AgentContext
from mendgraph.graph.machine.build import build_graph
from mendgraph.graph.runs.run import run_task
from mendgraph.nodes.call_model.window import SUMMARY_SYSTEM
from mendgraph.nodes.records import JsonMap
from tests.doubles.scripted_server import Calls, Chunked, Reply, Say, ScriptedServer, Status
from tests.workspace_files import write_files

WORD = "hunter2-hunter2-hunter2"


def context(folder: Path, base_url: str, **settings: Any) -> AgentContext:
    off: dict[str, Any] = dict.fromkeys(("evidence", "read_ahead", "audit"), False)
    return AgentContext(
        workspace=str(folder), model="m", base_url=base_url, protocol="native", provider_retries=0, **off, **settings
    )


def streamed(run: AgentContext, *, asynchronous: bool) -> list[AIMessageChunk]:
    """What `stream_mode="messages"` shows of the replies while they come."""
    asked: Any = {"messages": [HumanMessage("Is all well?")]}

    async def later() -> list[Any]:
        return [each async for each in build_graph().astream(asked, context=run, stream_mode="messages")]

    if asynchronous:
        parts = asyncio.run(later())
    else:
        parts = list(build_graph().stream(asked, context=run, stream_mode="messages"))
    return [message for message, _ in parts if isinstance(message, AIMessageChunk)]


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_summary_is_not_shown_as_a_reply(tmp_path: Path, asynchronous: bool) -> None:
    write_files(tmp_path, {"big.txt": "".join(f"{number} {'word ' * 12}\n" for number in range(400))})
    asked: list[str] = []

    def answer(request: JsonMap) -> Reply:
        messages = request["messages"]
        system = messages[0]["content"]
        asked.append(system)
        if system == SUMMARY_SYSTEM:
            return Say(json.dumps({"done": ["SUMMED UP"], "findings": [], "left": [], "files": []}))
        call = json.dumps({"path": "big.txt", "start_line": len(asked), "limit": 1})
        return Calls([("read_file", call)], text="I look once more. " * 60)

    with ScriptedServer(then=answer) as server:
        run = context(
            tmp_path, server.base_url, window_tokens=6_000, max_output_tokens_per_call=300, max_calls_per_turn=30
        )
        text = "".join(chunk.text for chunk in streamed(run, asynchronous=asynchronous))
    assert SUMMARY_SYSTEM in asked
    assert "I look once more." in text
    assert "UP" not in text


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_secret_that_a_model_repeats_is_not_shown(
    tmp_path: Path, asynchronous: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DEPLOY_TOKEN", WORD)
    call = json.dumps({"path": f"{WORD}.txt"})
    with ScriptedServer(
        [Chunked(Calls([("read_file", call)], f"It is {WORD}."), 5), Chunked(Say(f"So {WORD} it is."), 5)]
    ) as server:
        chunks = streamed(context(tmp_path, server.base_url), asynchronous=asynchronous)
    text = "".join(chunk.text for chunk in chunks)
    arguments = "".join(part["args"] or "" for chunk in chunks for part in chunk.tool_call_chunks)
    assert text == "It is [redacted secret].So [redacted secret] it is."
    assert json.loads(arguments) == {"path": "[redacted secret].txt"}


def test_what_is_meant_for_the_runs_endpoint_does_not_go_to_a_fallback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_CUSTOM_HEADERS", f"X-Gateway-Key: {WORD}")
    monkeypatch.setenv("OPENAI_ORG_ID", f"org-{WORD}")
    monkeypatch.setenv("OPENAI_PROJECT_ID", f"project-{WORD}")
    with ScriptedServer([Status(404)]) as first, ScriptedServer([Say("All is well.")]) as other:
        fallback = f"m @ {other.base_url.replace('127.0.0.1', 'localhost')}"
        run_task("Is all well?", context(tmp_path, first.base_url, fallback_models=(fallback,)))
    assert first.headers[0]["x-gateway-key"] == WORD
    assert WORD not in repr(other.headers)


@pytest.mark.parametrize("asynchronous", [False, True])
def test_callbacks_hear_no_secret_of_a_request(
    asynchronous: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Listener(BaseCallbackHandler):
        def on_chain_start(self, serialized: Any, inputs: Any, **_: Any) -> None:
            heard.append(repr((serialized, inputs)))

    monkeypatch.setenv("DEPLOY_TOKEN", WORD)
    heard: list[str] = []
    config: Any = {"callbacks": [Listener()]}
    asked: Any = {"messages": [HumanMessage(f"Look for {WORD}.")]}
    with ScriptedServer([Say("Done.")]) as server:
        run, machine = context(tmp_path, server.base_url), build_graph()
        if asynchronous:
            asyncio.run(machine.ainvoke(asked, config, context=run))
        else:
            machine.invoke(asked, config, context=run)
    assert "Look for [redacted secret]." in heard[0]
    assert WORD not in "".join(heard)
