"""One repair in three steps on each provider: read, edit, answer. The run is the same on all of them."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from langchain_core.messages import HumanMessage
from langgraph.checkpoint.memory import InMemorySaver

from mendgraph.graph.configuration.context import AgentContext
from mendgraph.graph.machine.build import Machine, build_graph
from mendgraph.graph.machine.serializer import serializer
from mendgraph.graph.runs.events import ToolStarted
from mendgraph.graph.runs.run import Session, run_task
from mendgraph.nodes.records import Outcome
from tests.extent import LEVEL, sampled, slow
from tests.providers.clients import client
from tests.providers.script import State
from tests.providers.servers import FAMILIES, QUICK, ProviderServer, Reply, say, use

BUG = "def add(a, b):\n    return a - b\n"
MENDED = BUG.replace("-", "+")
TASK = "Make add in calc.py add its numbers."
READ = ("read_file", '{"path": "calc.py"}')
EDIT = ("edit_file", '{"path": "calc.py", "old_str": "a - b", "new_str": "a + b"}')
ANSWER = "add sums its numbers now."
STEP = ("call_model", "parse", "guard", "execute_tools", "loop_check")
PATH = ["begin_turn", *STEP, *STEP, "call_model", "parse", "FINISHED"]
SCRIPTS: dict[str, list[Reply]] = {
    "native": [use(READ), use(EDIT), say(ANSWER, thinks=True)],
    "text": [*(say(f"tool: {tool}({arguments})", thinks=True) for tool, arguments in (READ, EDIT)), say(ANSWER)],
}
REFUSED_ONCE = {"no_tools": 1, "no_streaming": 1}
"""What is learned by one refusal, which is no call of its own in the ledger."""
AT_AN_ENDPOINT = ("openai_gpt5", "no_tools")
"""Families that an address and a name are enough for."""
CHECKS_STATE = ("openai_responses", "anthropic", "gemini")
"""Families that refuse a tool loop whose reasoning does not come back to the letter."""
THREAD: Any = {"configurable": {"thread_id": "t"}}


class RunSummary(NamedTuple):
    """The result of a run."""

    path: list[str]
    outcome: Outcome
    calls: int


Way = Callable[[Machine, AgentContext], list[Any]]


def context(folder: Path, protocol: Any, *, read_ahead: bool = False) -> AgentContext:
    return AgentContext(workspace=str(folder), protocol=protocol, read_ahead=read_ahead, evidence=False)


def project(folder: Path) -> Path:
    (folder / "calc.py").write_text(BUG)
    return folder


def machine(server: ProviderServer, saver: InMemorySaver, **options: Any) -> Machine:
    return build_graph(saver, model=client(server), **options)


def task() -> Any:
    return {"messages": [HumanMessage(TASK)]}


def in_a_thread(graph: Machine, settings: AgentContext) -> list[Any]:
    return list(graph.stream(task(), THREAD, context=settings, stream_mode=["updates", "custom"]))


def in_a_loop(graph: Machine, settings: AgentContext) -> list[Any]:
    async def parts() -> list[Any]:
        streamed = graph.astream(task(), THREAD, context=settings, stream_mode=["updates", "custom"])
        return [part async for part in streamed]

    return asyncio.run(parts())


def with_listeners(graph: Machine, settings: AgentContext) -> list[Any]:
    modes: Any = ["updates", "custom", "messages"]
    return list(graph.stream(task(), THREAD, context=settings, stream_mode=modes))


WAYS: dict[str, Way] = {"sync": in_a_thread, "async": in_a_loop, "streamed": with_listeners}


def run_summary(parts: list[Any], graph: Machine) -> RunSummary:
    path = [node for mode, part in parts if mode == "updates" for node in part]
    reports = [part for mode, part in parts if mode == "custom" and part.get("name") == "model.usage"]
    return RunSummary(path, graph.get_state(THREAD).values["outcome"], len(reports))


EACH_WAY = zip(FAMILIES, [*WAYS] * len(FAMILIES), strict=False)
"""Each provider in one of the ways; what a way does does not depend on who answers."""


@pytest.mark.parametrize(
    ("family", "protocol", "way"),
    [*((family, "native", way) for family, way in EACH_WAY), ("anthropic", "text", "async")],
)
def test_repair_is_the_same_run_on_every_provider(family: str, protocol: str, way: str, tmp_path: Path) -> None:
    script = SCRIPTS["text" if family == "no_tools" else protocol]
    with FAMILIES[family](script) as server:
        graph = machine(server, InMemorySaver(serde=serializer()))
        run = run_summary(WAYS[way](graph, context(project(tmp_path), protocol)), graph)
        refused = [refusal.why for refusal in server.refusals]
    assert (run.path, run.outcome.kind, run.outcome.answer) == (PATH, "FINISHED", ANSWER), run.outcome.message
    assert (tmp_path / "calc.py").read_text() == MENDED
    assert (run.calls, run.outcome.usage["total_calls"]) == (3, 3)
    learned = 0 if family == "no_tools" and protocol == "text" else REFUSED_ONCE.get(family, 0)
    assert len(refused) == learned, refused


@slow
@pytest.mark.parametrize("family", AT_AN_ENDPOINT)
def test_model_name_and_base_url_are_enough_to_run(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with FAMILIES[family](SCRIPTS["text" if family == "no_tools" else "native"]) as server:
        monkeypatch.setenv("OPENAI_API_KEY", server.key)
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        outcome = run_task(TASK, context(project(tmp_path), "native"), model=server.model).outcome
        first = server.requests[0]
    assert (outcome.kind, outcome.usage["total_calls"]) == ("FINISHED", 3), outcome.message
    assert (tmp_path / "calc.py").read_text() == MENDED
    assert not {"temperature", "stop"} & first.body.keys()
    assert first.headers["user-agent"].startswith("mendgraph/")


@slow
@pytest.mark.parametrize("family", ["anthropic", "gemini"])
def test_files_read_ahead_are_accepted_by_reasoning_models(family: str, tmp_path: Path) -> None:
    with FAMILIES[family]([use(EDIT), say(ANSWER)], play="position") as server:
        settings = context(project(tmp_path), "native", read_ahead=True)
        outcome = run_task(TASK, settings, model=client(server)).outcome
    assert outcome.kind == "FINISHED", outcome.message
    assert (tmp_path / "calc.py").read_text() == MENDED


@sampled
@pytest.mark.parametrize(
    ("family", "protocol"), [*((family, "native") for family in (FAMILIES if LEVEL else QUICK)), ("mistral", "text")]
)
def test_message_added_during_a_step_is_accepted_after_its_results(family: str, protocol: str, tmp_path: Path) -> None:
    script = SCRIPTS["text" if family == "no_tools" else protocol]
    script = [script[0], script[0], *script[1:]]  # a server counts the messages of the assistant, and one is ours
    settings = context(project(tmp_path), protocol)
    with FAMILIES[family](script) as server, Session(settings, model=client(server)) as session:
        for event in session.stream(TASK):
            if isinstance(event, ToolStarted) and event.call.tool == "read_file":
                session.add_message("Then say so.")
        result = session.result()
        assert len(server.refusals) == REFUSED_ONCE.get(family, 0), server.refusals
    assert (result.outcome.kind, (tmp_path / "calc.py").read_text()) == ("FINISHED", MENDED), result.outcome.message
    texts = [str(message.text) for message in result.messages]
    assert texts.index("Then say so.") == texts.index("I read what you add.") + 1 == 4


@pytest.mark.parametrize("family", CHECKS_STATE)
def test_run_resumed_after_each_step_sends_all_provider_state_back(family: str, tmp_path: Path) -> None:
    saver = InMemorySaver(serde=serializer())
    settings = context(project(tmp_path), "native")
    with FAMILIES[family](SCRIPTS["native"]) as server:
        path: list[str] = []
        request = task()
        while True:  # each call and each tool in a machine and on a chat model of its own, as after a kill
            graph = machine(server, saver)
            options: Any = {"stream_mode": "updates", "interrupt_after": ["call_model", "execute_tools"]}
            path += [node for part in graph.stream(request, THREAD, context=settings, **options) for node in part]
            if not graph.get_state(THREAD).next:
                break
            request = None
        outcome = graph.get_state(THREAD).values["outcome"]
        handed_out, returned = server.secrets_of_state, server.returned(server.requests[-1])
        assert server.refusals == []
    assert ([node for node in path if node != "__interrupt__"], outcome.kind) == (PATH, "FINISHED"), outcome.message
    assert 0 < len(returned) <= len(handed_out)


@slow
@pytest.mark.parametrize("family", CHECKS_STATE)
def test_reasoning_of_a_model_is_in_no_stream_result_or_log(family: str, tmp_path: Path) -> None:
    """A provider's state is in the history only: not in a stream, a result, the answer or the log."""
    saver = InMemorySaver(serde=serializer())
    with FAMILIES[family](SCRIPTS["native"]) as server:
        graph = machine(server, saver)
        parts = with_listeners(graph, context(project(tmp_path), "native"))
        secrets = [json.dumps(secret)[1:-1] for secret in server.secrets_of_state]
    streamed = [part for mode, part in parts if mode == "custom" or (mode == "messages" and part[0].type != "ai")]
    spoken = [part[0] for mode, part in parts if mode == "messages" and part[0].type == "AIMessageChunk"]
    streamed_text = json.dumps([*streamed, *(chunk.model_dump() for chunk in spoken)], default=str)
    streamed_text += graph.get_state(THREAD).values["outcome"].model_dump_json()
    streamed_text += "".join(file.read_text(errors="replace") for file in tmp_path.rglob("*") if file.is_file())
    assert secrets
    assert [secret for secret in secrets if secret in streamed_text] == []


@slow
@pytest.mark.parametrize("family", ["anthropic", "openai_responses"])
def test_secret_in_the_reasoning_is_never_stored(family: str, tmp_path: Path) -> None:
    """A block with a secret cannot be sent back redacted: it is dropped, and the run has a typed outcome."""
    canary = State(family, 0).letters("thinking", 40)
    assert canary in State(family, 0).thinking
    saver = InMemorySaver(serde=serializer((canary,)))
    with FAMILIES[family](SCRIPTS["native"]) as server:
        graph = machine(server, saver, secrets=(canary,))
        parts = with_listeners(graph, context(project(tmp_path), "native"))
    outcome = graph.get_state(THREAD).values["outcome"]
    assert outcome.kind in ("FINISHED", "SYSTEM_ERROR")
    assert canary not in repr(parts)
    assert canary.encode() not in repr(list(saver.storage.items())).encode() + repr(saver.blobs).encode()
    assert canary.encode() not in repr(saver.writes).encode()


@slow
def test_cached_prompt_of_anthropic_is_billed_as_cached(tmp_path: Path) -> None:
    """System prompt (after the tools) and last message are marked: the second request reads the first one's cache."""
    with FAMILIES["anthropic"](SCRIPTS["native"]) as server:
        usage = run_task(TASK, context(project(tmp_path), "native"), model=client(server)).outcome.usage
        marked = [json.dumps(request.body).count("cache_control") for request in server.requests]
    assert marked == [2, 2, 2]
    assert usage["cached_tokens"] > 0
    assert usage["cache_write_tokens"] > 0
