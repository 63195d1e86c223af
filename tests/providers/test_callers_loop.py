"""A model runs in its caller's thread or event loop, whatever else uses the same endpoint there."""

import asyncio
import gc
import os
import signal
import socket
import threading
import warnings
from collections.abc import Awaitable, Callable
from contextlib import suppress
from itertools import count, product
from pathlib import Path
from typing import Any

import pytest
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import HumanMessage
from langgraph.graph import START, MessagesState, StateGraph

from mendgraph import AgentContext, Outcome, arun_task, build_graph, run_task
from tests.doubles.scripted_server import Say, ScriptedServer
from tests.extent import LEVEL, sampled, slow
from tests.providers.clients import client
from tests.providers.servers import FAMILIES, ProviderServer, say

REQUEST, ANSWER = "What does a.py assign?", "It assigns x."
WAIT_S = 30.0
PROVIDERS = ("openai_gpt5", "ollama", "anthropic")


class Project:
    """A project with its own chat model that also runs mendgraph: by a name, an instance, or the same instance.

    Each run has a workspace of its own.
    """

    def __init__(self, server: ProviderServer, source: str, folder: Path, retries: int) -> None:
        options: dict[str, Any] = {} if server.family == "ollama" else {"max_retries": retries}
        self.chat = client(server, **options)
        self.model: BaseChatModel | None = None
        self._named: dict[str, Any] = {}
        if source == "instance":
            self.model = client(server, **options)
        elif source == "shared instance":
            self.model = self.chat
        else:
            provider = server.family.removesuffix("_gpt5")
            self._named = {"model": f"{provider}:{server.model}", "base_url": server.url}
        self._folder, self._numbers = folder, count()

    def context(self) -> AgentContext:
        folder = self._folder / f"{os.getpid()}_{next(self._numbers)}"
        folder.mkdir()
        (folder / "a.py").write_text("x = 1\n")
        settings = {"evidence": False, "read_ahead": False, "provider_retries": 0, **self._named}
        return AgentContext(workspace=str(folder), **settings)

    def run(self) -> str:
        return self._answer(run_task(REQUEST, self.context(), model=self.model).outcome)

    async def arun(self) -> str:
        return self._answer((await arun_task(REQUEST, self.context(), model=self.model)).outcome)

    def call(self) -> str:
        return self.chat.invoke("hi").text

    async def acall(self) -> str:
        return (await self.chat.ainvoke("hi")).text

    async def agraph(self) -> str:
        """A graph of the project's whose own node awaits the model, and then comes mendgraph."""

        class State(MessagesState, total=False):
            outcome: Outcome

        async def plan(state: State) -> dict[str, Any]:
            return {"messages": [HumanMessage((await self.chat.ainvoke(state["messages"])).text)]}

        builder = StateGraph(State)
        builder.add_node("plan", plan)
        builder.add_node("coder", build_graph(model=self.model, context=self.context()))
        builder.add_edge(START, "plan")
        builder.add_edge("plan", "coder")
        result = await builder.compile().ainvoke({"messages": [HumanMessage("hi")]})
        return self._answer(result["outcome"])

    @staticmethod
    def _answer(outcome: Outcome) -> str:
        return outcome.answer or outcome.message


def in_order(*steps: Callable[[], str]) -> list[str]:
    return [step() for step in steps]


async def ain_order(*steps: Callable[[], Awaitable[str]]) -> list[str]:
    return [await step() for step in steps]


def sync(project: Project) -> list[str]:
    return in_order(project.call, project.run, project.call, project.run)


def in_one_loop(project: Project) -> list[str]:
    async def work() -> list[str]:
        answers = await ain_order(project.acall, project.arun, project.acall, project.agraph, project.acall)
        return [*answers, *await asyncio.gather(project.acall(), project.arun(), project.arun(), project.acall())]

    return asyncio.run(work())


def in_uvloop(project: Project) -> list[str]:
    """Only runs: uvloop raises an error at its end where connections are open, as LangChain leaves the project's."""
    uvloop = pytest.importorskip("uvloop")
    answers: list[str] = uvloop.run(ain_order(project.arun, project.arun))
    return [*answers, uvloop.run(project.arun()), project.run()]


def in_several_loops(project: Project) -> list[str]:
    """The project itself makes calls in the first of them only: LangChain shares their connections among all loops."""
    steps = (project.acall, project.arun, project.arun)
    return [*(asyncio.run(step()) for step in steps), project.run(), asyncio.run(project.arun()), project.call()]


def in_running_loop(project: Project) -> list[str]:
    """Sync, as in a cell of a notebook, whose loop runs."""

    async def cell() -> list[str]:
        return [project.run(), await project.acall(), project.run(), await project.arun()]

    return asyncio.run(cell())


def in_threads(project: Project) -> list[str]:
    """Two threads with a loop each and two without, beside each other."""
    answers: list[str] = []

    def loop() -> None:
        answers.extend(asyncio.run(ain_order(project.arun, project.arun)))

    def plain() -> None:
        answers.extend(in_order(project.call, project.run, project.call))

    threads = [threading.Thread(target=work) for work in (loop, plain, loop, plain)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)
    return answers if len(answers) == 10 else [*answers, "a thread failed"]


def in_forked_child(project: Project) -> list[str]:
    """After calls and runs of the parent the child runs sync and async, and then the parent again."""
    answers = [project.call(), project.run(), asyncio.run(project.arun())]
    gc.collect()  # no thread frees a TLS context of an ended call while the process forks
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(int(WAIT_S))  # a child that hangs fails this test and blocks no other
        try:
            child_answers = [project.run(), asyncio.run(project.arun()), project.run()]
            os.write(writing, "\n".join(child_answers).encode())
        except BaseException as error:  # noqa: BLE001 - the parent has to hear of it
            os.write(writing, repr(error).encode())
        finally:
            os._exit(0)
    os.close(writing)
    with open(reading) as pipe:
        answers += pipe.read().splitlines()
    _, status = os.waitpid(child, 0)
    if status != 0:
        answers.append(f"the forked child ended with {os.waitstatus_to_exitcode(status)}")
    return [*answers, project.run(), asyncio.run(project.arun())]


WAYS: tuple[Callable[[Project], list[str]], ...] = (
    sync,
    in_one_loop,
    in_uvloop,
    in_several_loops,
    in_running_loop,
    in_threads,
    in_forked_child,
)
SOURCES = (("name", 0), ("instance", 2), ("instance", 0), ("shared instance", 2), ("shared instance", 0))
COMBINATIONS = (
    [*product(WAYS, PROVIDERS, SOURCES)]
    if LEVEL
    else [(way, PROVIDERS[number % len(PROVIDERS)], SOURCES[number % len(SOURCES)]) for number, way in enumerate(WAYS)]
)
"""All of them in `make sweep`, as faults came from combinations; otherwise each way, provider and source."""


@sampled
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.parametrize(("way", "provider", "source"), COMBINATIONS)
def test_runs_work_beside_the_projects_own_calls_to_the_same_endpoint(
    way: Callable[[Project], list[str]],
    provider: str,
    source: tuple[str, int],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with FAMILIES[provider]([say(ANSWER)]) as server:
        for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY"):
            monkeypatch.setenv(name, server.key)
        answers = way(Project(server, source[0], tmp_path, source[1]))
    assert answers == [ANSWER] * len(answers)
    assert server.refusals == []


@slow
def test_connections_are_reused_within_an_event_loop_and_closed_with_it(tmp_path: Path) -> None:
    with ScriptedServer(then=lambda _: Say(ANSWER)) as server, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ResourceWarning)
        graph = build_graph(context=AgentContext(workspace=str(tmp_path), model="m", base_url=server.base_url))

        async def turns() -> None:
            for _ in range(3):
                await graph.ainvoke({"messages": [HumanMessage(REQUEST)]})

        asyncio.run(turns())
        assert (len(server.requests), server.connections) == (3, 1)
        for _ in range(3):
            graph.invoke({"messages": [HumanMessage(REQUEST)]})
    gc.collect()
    assert [str(warning.message) for warning in caught if "socket" in str(warning.message).lower()] == []


class SilentEndpoint:
    """An endpoint that accepts one request, never answers, and notices when the client closes the connection."""

    def __init__(self) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.base_url = f"http://127.0.0.1:{self._socket.getsockname()[1]}/v1"
        self.client_closed = threading.Event()
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        with self._socket, self._socket.accept()[0] as connection, suppress(ConnectionError):
            while connection.recv(65_536):
                pass
        self.client_closed.set()


@slow
@pytest.mark.parametrize("in_loop", [False, True], ids=["sync", "async"])
def test_request_abandoned_at_its_deadline_closes_its_connection(in_loop: bool, tmp_path: Path) -> None:
    endpoint = SilentEndpoint()
    settings: Any = {"base_url": endpoint.base_url, "request_timeout_s": 0.2, "provider_retries": 0}
    context = AgentContext(workspace=str(tmp_path), model="m", **settings)
    result = asyncio.run(arun_task(REQUEST, context)) if in_loop else run_task(REQUEST, context)
    assert result.outcome.kind == "SYSTEM_ERROR"
    assert endpoint.client_closed.wait(30)
