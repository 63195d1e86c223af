"""A model runs in its caller's thread or event loop, whoever else uses the same endpoint there."""

import asyncio
import gc
import os
import signal
import threading
import warnings
from collections.abc import Awaitable, Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import HumanMessage
from langgraph.graph import START, MessagesState, StateGraph

from mendgraph import AgentContext, Outcome, arun_task, build_graph, run_task
from tests.runs.chat_servers import ANSWER, PROVIDERS, ChatServer, chat_server

REQUEST = "What does a.py assign?"
WAIT_S = 30.0


@pytest.fixture
def server() -> Iterator[ChatServer]:
    with chat_server() as endpoint:
        yield endpoint


class Project:
    """A project with a chat model of its own that also runs mendgraph: by a name, an instance, or the same instance.

    Each run has a workspace of its own.
    """

    def __init__(self, server: ChatServer, provider: str, source: str, folder: Path, retries: int | None) -> None:
        self.chat = server.chat(provider, retries=retries)
        self.model: BaseChatModel | None = None
        if source == "instance":
            self.model = server.chat(provider, retries=retries)
        elif source == "shared instance":
            self.model = self.chat
        self._named = server.named(provider) if source == "name" else {}
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
        signal.alarm(int(WAIT_S))  # a child that waits for ever fails this test, and holds up no other
        try:
            said = [project.run(), asyncio.run(project.arun()), project.run()]
            os.write(writing, "\n".join(said).encode())
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


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.parametrize(
    ("source", "retries"),
    [("name", 0), ("instance", None), ("instance", 0), ("shared instance", None), ("shared instance", 0)],
)
@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize(
    "way",
    [sync, in_one_loop, in_uvloop, in_several_loops, in_running_loop, in_threads, in_forked_child],
    ids=lambda way: way.__name__,
)
def test_project_and_runs_use_the_same_endpoint(
    way: Callable[[Project], list[str]],
    provider: str,
    source: str,
    retries: int | None,
    server: ChatServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    monkeypatch.setenv("ANTHROPIC_API_KEY", "none")
    answers = way(Project(server, provider, source, tmp_path, retries))
    assert answers == [ANSWER] * len(answers)


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize("source", ["name", "instance"])
def test_connections_are_kept_within_a_loop_and_closed_with_it(
    source: str, provider: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    monkeypatch.setenv("ANTHROPIC_API_KEY", "none")
    with chat_server() as server, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ResourceWarning)
        project = Project(server, provider, source, tmp_path, None)
        graph = build_graph(model=project.model, context=project.context())

        async def turns() -> None:
            for _ in range(3):
                await graph.ainvoke({"messages": [HumanMessage(REQUEST)]})

        asyncio.run(turns())
        assert (len(server.requests), server.connections) == (3, 1)
        for _ in range(3):
            graph.invoke({"messages": [HumanMessage(REQUEST)]})
    gc.collect()
    assert [str(each.message) for each in caught if "socket" in str(each.message).lower()] == []
