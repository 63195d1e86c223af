"""Tool calls that happen once, whatever kills the process, in agents of `create_agent` and deepagents."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any

import pytest
from langchain.agents.middleware import AgentMiddleware
from langchain.agents.middleware.types import ToolCallRequest
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.tools import InjectedToolArg, InjectedToolCallId, tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.errors import GraphDrained, ParentCommand
from langgraph.types import Command, interrupt

from mendgraph import Effect, ExactlyOnceMiddleware
from mendgraph.nodes.execute_tools.tool_outcome import RetryableToolError
from tests.crash.fork_server import ForkServer
from tests.doubles.replies import Calls, Reply, Say
from tests.doubles.scripted_server import ScriptedServer
from tests.extent import slow
from tests.langchain.agents import THREAD, agent, ask, deep_agent, event_loop, sync_and_async
from tests.providers.wire import JsonMap

PAY = ("pay", '{"amount": 5}')


def paying(*calls: tuple[str, str]) -> ScriptedServer:
    """An endpoint whose model makes these calls in one reply, and answers when it has results."""

    def answer(request: JsonMap) -> Reply:
        return Say("Paid.") if request["messages"][-1]["role"] == "tool" else Calls(calls or [PAY])

    return ScriptedServer(then=answer)


class Killed(BaseException):
    """The process is gone."""


class Crash(AgentMiddleware):
    """Ends the process after the first tool call, before LangGraph stores its result."""

    def __init__(self) -> None:
        super().__init__()
        self.is_due = True

    def _crash(self) -> None:
        if self.is_due:
            self.is_due = False
            raise Killed

    def wrap_tool_call(self, request: Any, handler: Any) -> Any:
        answer = handler(request)
        self._crash()
        return answer

    async def awrap_tool_call(self, request: Any, handler: Any) -> Any:
        answer = await handler(request)
        self._crash()
        return answer


def resume(built: Any, loop: bool, what: Any = None) -> list[Any]:
    """Resume the thread from its last checkpoint."""
    result = event_loop().run(built.ainvoke(what, THREAD)) if loop else built.invoke(what, THREAD)
    return list(result["messages"])


def results(messages: list[Any]) -> list[tuple[str, str]]:
    return [(message.status, message.text) for message in messages if isinstance(message, ToolMessage)]


@slow
@sync_and_async
@pytest.mark.parametrize("make", [agent, deep_agent], ids=["create_agent", "deepagents"])
@pytest.mark.parametrize("times", [1, 2], ids=["with", "without"])
def test_effect_before_a_crash_is_not_repeated(make: Any, times: int, loop: bool, tmp_path: Path) -> None:
    paid: list[int] = []

    def pay(amount: int) -> str:
        """Pay an amount."""
        paid.append(amount)
        return f"Paid {amount}."

    once = [ExactlyOnceMiddleware(tmp_path)] if times == 1 else []
    with paying() as server:
        built = make(server, Crash(), *once, tools=[pay], checkpointer=InMemorySaver())
        with pytest.raises(Killed):
            ask(built, loop)
        assert results(resume(built, loop)) == [("success", "Paid 5.")]
    assert paid == [5] * times


@pytest.fixture(scope="module")
def server() -> Iterator[ForkServer]:
    with ForkServer(None, "tests.langchain.paying_play") as started:
        yield started


def killed_while_it_pays(server: ForkServer, folder: Path, *, once: bool) -> str:
    """The result, after a resume, of a call whose process was killed after its effect."""
    with paying() as endpoint:
        argument = {"folder": str(folder), "url": endpoint.base_url, "once": once}
        killed, resumed = (server.run("work", argument) for _ in range(2))
    assert killed.killed
    return str(resumed.value)


def test_effect_of_a_killed_process_happens_once_and_its_outcome_is_unknown(server: ForkServer, tmp_path: Path) -> None:
    assert "outcome_unknown" in killed_while_it_pays(server, tmp_path, once=True)
    assert (tmp_path / "paid.txt").read_text() == "5\n"


@slow
def test_effect_of_a_killed_process_happens_twice_without_the_middleware(server: ForkServer, tmp_path: Path) -> None:
    assert killed_while_it_pays(server, tmp_path, once=False) == "Paid."
    assert (tmp_path / "paid.txt").read_text() == "5\n5\n"


@sync_and_async
def test_tool_with_an_idempotency_key_runs_again_with_the_same_key(loop: bool, tmp_path: Path) -> None:
    keys: list[str] = []

    @tool
    def pay(amount: int, idempotency_key: Annotated[str, InjectedToolArg] = "") -> str:
        """Pay an amount."""
        keys.append(idempotency_key)
        if len(keys) == 1:
            raise Killed
        return f"Paid {amount}."

    with paying() as server:
        built = agent(server, ExactlyOnceMiddleware(tmp_path), tools=[pay], checkpointer=InMemorySaver())
        with pytest.raises(Killed):
            ask(built, loop)
        assert results(resume(built, loop)) == [("success", "Paid 5.")]
        assert "idempotency_key" not in str(server.requests[0]["tools"])
        other = {"configurable": {"thread_id": "2"}}
        ask(built, loop, other)  # type: ignore[arg-type]
    assert (len(keys), len({*keys[:2]}), len({*keys}), len(keys[0])) == (3, 1, 2, 64)


@slow
@sync_and_async
def test_parallel_calls_each_happen_once(loop: bool, tmp_path: Path) -> None:
    """A call that is cancelled by the crash of another one while its tool runs has an unknown outcome."""
    paid: list[int] = []

    def pay(amount: int) -> str:
        """Pay an amount."""
        paid.append(amount)
        return f"Paid {amount}."

    calls = [("pay", f'{{"amount": {amount}}}') for amount in (1, 2, 2, 3)]
    with paying(*calls) as server:
        built = agent(server, Crash(), ExactlyOnceMiddleware(tmp_path), tools=[pay], checkpointer=InMemorySaver())
        with pytest.raises(Killed):
            ask(built, loop)
        texts = [text for _, text in results(resume(built, loop))]
    unknown = [text for text in texts if "outcome_unknown" in text]
    expected = [
        text if text in unknown else f"Paid {amount}." for text, amount in zip(texts, (1, 2, 2, 3), strict=True)
    ]
    assert texts == expected
    assert len(unknown) < (4 if loop else 1)
    assert Counter(paid) <= Counter((1, 2, 2, 3))
    assert len(paid) >= 4 - len(unknown)


@sync_and_async
def test_interrupt_reruns_its_own_tool_and_no_other(loop: bool, tmp_path: Path) -> None:
    paid: list[str] = []

    def pay(amount: int) -> str:
        """Pay an amount."""
        paid.append(f"{amount}")
        return "Paid."

    def pay_more(amount: int) -> str:
        """Pay an amount that a person approves."""
        answer = interrupt("May I?")
        paid.append(f"{amount} {answer}")
        return "Paid more."

    with paying(PAY, ("pay_more", '{"amount": 9}')) as server:
        built = agent(server, ExactlyOnceMiddleware(tmp_path), tools=[pay, pay_more], checkpointer=InMemorySaver())
        ask(built, loop)
        assert results(resume(built, loop, Command(resume="yes"))) == [("success", "Paid."), ("success", "Paid more.")]
    assert paid == ["5", "9 yes"]


@pytest.mark.parametrize(
    ("error", "times", "text"),
    [(RetryableToolError("The bank is busy."), 2, "Paid."), (ValueError("broken pipe"), 1, "outcome_unknown")],
)
def test_tool_that_raises_runs_again_only_if_the_error_says_that_nothing_happened(
    error: Exception, times: int, text: str, tmp_path: Path
) -> None:
    paid: list[int] = []

    def pay(amount: int) -> str:
        """Pay an amount."""
        paid.append(amount)
        if len(paid) == 1:
            raise error
        return "Paid."

    with paying() as server:
        built = agent(server, ExactlyOnceMiddleware(tmp_path), tools=[pay], checkpointer=InMemorySaver())
        with pytest.raises(type(error)):
            ask(built)
        assert text in results(resume(built, False))[0][1]
    assert len(paid) == times


def request(reply: str) -> Any:
    """The same call in a reply with this id."""
    call: Any = {"name": "pay", "args": {"amount": 5}, "id": "call_0"}
    runtime = SimpleNamespace(config=THREAD)
    state = {"messages": [AIMessage("", id=reply, tool_calls=[call])]}
    return ToolCallRequest(tool_call=call, tool=None, state=state, runtime=runtime)  # type: ignore[arg-type]


@pytest.mark.parametrize("error", [ParentCommand(Command()), GraphDrained("shutdown")])
def test_call_that_leaves_the_graph_after_its_effect_is_not_repeated(error: Exception, tmp_path: Path) -> None:
    paid: list[int] = []
    once = ExactlyOnceMiddleware(tmp_path)

    def pay(_: Any) -> ToolMessage:
        paid.append(5)
        raise error

    with pytest.raises(type(error)):
        once.wrap_tool_call(request("first"), pay)
    assert "outcome_unknown" in once.wrap_tool_call(request("first"), pay).text  # type: ignore[union-attr]
    assert paid == [5]


def test_call_with_the_same_id_in_another_reply_is_another_call(tmp_path: Path) -> None:
    paid: list[str] = []
    once = ExactlyOnceMiddleware(tmp_path)

    def pay(request: Any) -> ToolMessage:
        paid.append(request.state["messages"][-1].id)
        return ToolMessage("Paid.", tool_call_id="call_0")

    for reply in ("first", "first", "second"):
        assert once.wrap_tool_call(request(reply), pay).text == "Paid."  # type: ignore[union-attr]
    assert paid == ["first", "second"]


def test_read_only_tool_is_not_recorded(tmp_path: Path) -> None:
    looked: list[str] = []

    def read_file() -> str:
        """Read the balance."""
        looked.append("read_file")
        return "5"

    def balance() -> str:
        """Tell the balance."""
        looked.append("balance")
        return "5"

    once = ExactlyOnceMiddleware(tmp_path, effects={"balance": Effect.READ})
    with paying(("read_file", "{}"), ("balance", "{}")) as server:
        built = agent(server, once, tools=[read_file, balance], checkpointer=InMemorySaver())
        assert len(results(ask(built))) == 2
    assert sorted(looked) == ["balance", "read_file"]
    assert once._journal.calls_of_step("agent 1", 0) == {}


def test_recorded_result_is_redacted_and_a_state_update_is_restored(tmp_path: Path) -> None:
    paid: list[int] = []

    @tool
    def pay(amount: int, call_id: Annotated[str, InjectedToolCallId]) -> Command[Any]:
        """Pay an amount."""
        paid.append(amount)
        text = "The key is ghp_0a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7R."
        return Command(update={"messages": [ToolMessage(text, tool_call_id=call_id)]})

    with paying() as server:
        built = agent(server, Crash(), ExactlyOnceMiddleware(tmp_path), tools=[pay], checkpointer=InMemorySaver())
        with pytest.raises(Killed):
            ask(built)
        assert results(resume(built, False)) == [("success", "The key is [redacted secret].")]
    assert paid == [5]


def test_result_that_cannot_be_stored_is_an_error_and_the_tool_does_not_run_again(tmp_path: Path) -> None:
    paid: list[int] = []

    @tool(response_format="content_and_artifact")
    def pay(amount: int) -> tuple[str, Any]:
        """Pay an amount."""
        paid.append(amount)
        return "Paid.", lambda: None

    with paying() as server:
        built = agent(server, Crash(), ExactlyOnceMiddleware(tmp_path), tools=[pay], checkpointer=InMemorySaver())
        with pytest.raises(Killed):
            ask(built)
        assert len(results(resume(built, False))) == 1
    assert paid == [5]


def test_call_whose_intent_cannot_be_recorded_does_not_run(tmp_path: Path) -> None:
    paid: list[int] = []

    def pay(amount: int) -> str:
        """Pay an amount."""
        paid.append(amount)
        return "Paid."

    once = ExactlyOnceMiddleware(tmp_path)
    (Path(once._journal._folder) / "store.sqlite").write_text("no database" * 100)
    with paying() as server:
        built = agent(server, once, tools=[pay], checkpointer=InMemorySaver())
        ((status, text),) = results(ask(built))
    assert (status, paid) == ("error", [])
    assert "pay was not run, because its effect could not be recorded: " in text


def test_folder_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ValueError, match="does not exist"):
        ExactlyOnceMiddleware("nowhere")
