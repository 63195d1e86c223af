"""What LangChain's callbacks see of a run: its replies, without secrets; and which headers reach which host."""

import asyncio
import json
from collections import Counter
from contextvars import ContextVar
from pathlib import Path
from typing import Any, ClassVar

import pytest
from langchain.agents import create_agent
from langchain_core.callbacks import BaseCallbackHandler, UsageMetadataCallbackHandler, get_usage_metadata_callback
from langchain_core.messages import AIMessageChunk, HumanMessage
from langchain_core.tracers.context import register_configure_hook

from mendgraph import AgentContext, BudgetMiddleware, HealingMiddleware, build_graph, run_task
from tests.doubles.scripted_server import Calls, Chunked, Say, ScriptedServer, Status
from tests.extent import slow
from tests.langchain.agents import chat, look
from tests.workspace_files import write_files

WORD = "hunter2-hunter2-hunter2"


def context(folder: Path, base_url: str, **settings: Any) -> AgentContext:
    off: dict[str, Any] = dict.fromkeys(("evidence", "read_ahead", "audit"), False)
    return AgentContext(
        workspace=str(folder), model="m", base_url=base_url, protocol="native", provider_retries=0, **off, **settings
    )


def stream_messages(run: AgentContext, *, asynchronous: bool) -> list[AIMessageChunk]:
    """What `stream_mode="messages"` streams of the replies."""
    turn_input: Any = {"messages": [HumanMessage("Is all well?")]}

    async def later() -> list[Any]:
        return [part async for part in build_graph().astream(turn_input, context=run, stream_mode="messages")]

    if asynchronous:
        parts = asyncio.run(later())
    else:
        parts = list(build_graph().stream(turn_input, context=run, stream_mode="messages"))
    return [message for message, _ in parts if isinstance(message, AIMessageChunk)]


@pytest.mark.parametrize("asynchronous", [False, True])
def test_secret_repeated_by_the_model_is_redacted_in_the_stream(
    tmp_path: Path, asynchronous: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DEPLOY_TOKEN", WORD)
    call = json.dumps({"path": f"{WORD}.txt"})
    with ScriptedServer(
        [Chunked(Calls([("read_file", call)], f"It is {WORD}."), 5), Chunked(Say(f"So {WORD} it is."), 5)]
    ) as server:
        chunks = stream_messages(context(tmp_path, server.base_url), asynchronous=asynchronous)
    text = "".join(chunk.text for chunk in chunks)
    arguments = "".join(part["args"] or "" for chunk in chunks for part in chunk.tool_call_chunks)
    assert text == "It is [redacted secret].So [redacted secret] it is."
    assert json.loads(arguments) == {"path": "[redacted secret].txt"}


def test_headers_for_the_endpoint_of_the_run_are_not_sent_to_a_fallback(
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


def test_callbacks_receive_no_secret_of_a_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Listener(BaseCallbackHandler):
        def on_chain_start(self, serialized: Any, inputs: Any, **_: Any) -> None:
            heard.append(repr((serialized, inputs)))

    monkeypatch.setenv("DEPLOY_TOKEN", WORD)
    heard: list[str] = []
    config: Any = {"callbacks": [Listener()]}
    turn_input: Any = {"messages": [HumanMessage(f"Look for {WORD}.")]}
    with ScriptedServer([Say("Done.")]) as server:
        build_graph().invoke(turn_input, config, context=context(tmp_path, server.base_url))
    assert "Look for [redacted secret]." in heard[0]
    assert WORD not in "".join(heard)


class CountingHandler(BaseCallbackHandler):
    """Counts model calls and tool calls, and keeps their data."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self.words = ""

    def _count(self, name: str, *words: Any) -> None:
        self.calls[name] += 1
        self.words += repr(words)

    def on_chat_model_start(self, *arguments: Any, **_: Any) -> None:
        self._count("model begins", arguments)

    def on_llm_end(self, *arguments: Any, **_: Any) -> None:
        self._count("model ends", arguments)

    def on_tool_start(self, *arguments: Any, **more: Any) -> None:
        self._count("tool begins", arguments, more["inputs"])

    def on_tool_end(self, *arguments: Any, **_: Any) -> None:
        self._count("tool ends", arguments)


class ByVariable(CountingHandler):
    """Created by LangChain for each call if an environment variable is set."""

    heard: ClassVar[Counter[str]] = Counter()

    def __init__(self) -> None:
        super().__init__()
        self.calls = self.heard


HOOK: ContextVar[BaseCallbackHandler | None] = ContextVar("test_callbacks_hook", default=None)
register_configure_hook(HOOK, inheritable=True)
register_configure_hook(ContextVar("test_callbacks_variable", default=None), True, ByVariable, "TEST_CALLBACKS")
EACH_ONCE = {"model begins": 2, "model ends": 2, "tool begins": 1, "tool ends": 1}


@slow
@pytest.mark.parametrize(
    ("kind", "way"), [("instance", "async"), ("name", "sync"), ("name", "stream"), ("create_agent", "sync")]
)
def test_callbacks_receive_each_call_once_wherever_they_are_registered(
    kind: str, way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_files(tmp_path, {"a.txt": f"The key is {WORD}.\n"})
    monkeypatch.setenv("DEPLOY_TOKEN", WORD)
    monkeypatch.setenv("TEST_CALLBACKS", "1")
    ByVariable.heard.clear()
    counting, usage, hook = CountingHandler(), UsageMetadataCallbackHandler(), CountingHandler()
    config: Any = {"callbacks": [counting, usage]}
    tool = "look" if kind == "create_agent" else "read_file"
    script = [Calls([(tool, '{"path": "a.txt"}')], usage=(1_000, 20)), Say(f"It is {WORD}.", usage=(1_000, 30))]
    with ScriptedServer(script) as server:
        run = context(tmp_path, server.base_url, system_prompt=f"The key is {WORD}.")
        machine: Any = build_graph(
            model=chat(server, disable_streaming=True) if kind == "instance" else None, context=run
        )
        if kind == "create_agent":
            middleware: Any = [HealingMiddleware(), BudgetMiddleware(max_calls_per_turn=5)]
            machine = create_agent(chat(server, stream_usage=True), [look], middleware=middleware)
        turn_input: Any = {"messages": [HumanMessage("What is in a.txt?")]}
        token = HOOK.set(hook)
        with get_usage_metadata_callback() as manager:
            if way == "async":
                asyncio.run(machine.ainvoke(turn_input, config))
            elif way == "sync":
                machine.invoke(turn_input, config)
            else:
                list(machine.stream(turn_input, config, stream_mode=["messages", "updates"]))
        HOOK.reset(token)
    assert counting.calls == hook.calls == ByVariable.heard == EACH_ONCE
    for handler in (usage, manager):
        [tokens] = handler.usage_metadata.values()
        assert (tokens["input_tokens"], tokens["output_tokens"]) == (2_000, 50)
    if kind != "create_agent":
        assert "[redacted secret]" in counting.words
        assert WORD not in counting.words + hook.words
