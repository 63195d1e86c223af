"""`BudgetMiddleware` in agents of LangChain and deepagents: no limit is exceeded; without it all are."""

import asyncio
import threading
from contextlib import closing
from itertools import count
from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver

from mendgraph import AccountSpent, AgentStoppedError, BudgetMiddleware, account_spent
from mendgraph.graph.spending.store import SpendingStore
from mendgraph.nodes.call_model.ledger import LEAST_CUT_OFF, Entry, RunLimits
from tests.doubles.scripted_server import Calls, Say, ScriptedServer, Stall
from tests.extent import slow
from tests.langchain.agents import THREAD, agent, ask, deep_agent, look, sync_and_async

PRICED: dict[str, Any] = {"usd_per_million_input": 10.0, "usd_per_million_output": 100.0}
"""A call of `looking` costs 0.02 USD."""


def endless_reader() -> ScriptedServer:
    """A model that reads one file after the other, forever."""
    numbers = count()
    return ScriptedServer(then=lambda _: Calls([("look", f'{{"path": "{next(numbers)}.py"}}')], usage=(1_000, 100)))


def spending_of(agent_graph: Any) -> dict[str, Any]:
    spending: dict[str, Any] = agent_graph.get_state(THREAD).values["mendgraph_budget"]["spending"]
    return spending


@sync_and_async
def test_cost_limit_is_not_exceeded(loop: bool) -> None:
    with endless_reader() as server:
        agent_graph = agent(server, BudgetMiddleware(max_cost_usd=0.09, **PRICED), checkpointer=InMemorySaver())
        last = ask(agent_graph, loop)[-1]
    assert last.text.startswith("The next call may cost more than is left of max_cost_usd=0.09")
    assert last.response_metadata["stop"]["reason"] == "max_cost"
    assert (len(server.requests), spending_of(agent_graph)["cost_usd"]) == (4, pytest.approx(0.08))


@slow
def test_thread_remembers_its_spending() -> None:
    saver = InMemorySaver()
    with endless_reader() as server:
        answers = []
        for _ in range(3):  # as if each were in its own process
            middleware = BudgetMiddleware(max_calls_per_session=5, max_calls_per_turn=3)
            answers.append(ask(agent(server, middleware, checkpointer=saver))[-1].text)
    assert answers == [
        f"Limit 'max_calls_per_{limit}" for limit in ("turn' exceeded: 3/3", *["session' exceeded: 5/5"] * 2)
    ]
    assert len(server.requests) == 5


def test_calls_after_an_older_checkpoint_still_count() -> None:
    with endless_reader() as server:
        agent_graph = agent(
            server, BudgetMiddleware(max_calls_per_session=5, max_calls_per_turn=3), checkpointer=InMemorySaver()
        )
        ask(agent_graph)
        oldest = list(agent_graph.get_state_history(THREAD))[-3].config  # the turn has begun, and nothing was sent
        last = agent_graph.invoke(None, oldest)["messages"][-1]
    assert (last.text, len(server.requests)) == ("Limit 'max_calls_per_turn' exceeded: 3/3", 3)


@slow
def test_reply_limit_is_what_is_left_of_the_budget() -> None:
    with endless_reader() as server:
        last = ask(agent(server, BudgetMiddleware(max_output_tokens_per_session=350)))[-1]
        assert last.text == "Limit 'max_output_tokens_per_session' exceeded: 400/350"  # longer than allowed
        assert [request["max_completion_tokens"] for request in server.requests] == [350, 250, 150, 50]
        server.requests.clear()
        ask(agent(server, BudgetMiddleware(max_calls_per_turn=2)))
        assert all("max_completion_tokens" not in request for request in server.requests)
        server.requests.clear()
        prices: dict[str, Any] = {"usd_per_million_input": 0.0, "usd_per_million_output": 100.0}
        ask(agent(server, BudgetMiddleware(max_cost_usd=0.035, **prices)))
        assert [request["max_completion_tokens"] for request in server.requests] == [350, 250, 150, 50]
        server.requests.clear()
        assert "no price is known" in ask(agent(server, BudgetMiddleware(max_cost_usd=1.0)))[-1].text
        assert not server.requests


def test_calls_of_a_killed_process_are_charged_to_the_next_turn() -> None:
    saver = InMemorySaver()
    with ScriptedServer(then=lambda _: Say("Done.", usage=(10, 5))) as server:
        agent_graph = agent(server, BudgetMiddleware(max_calls_per_session=9), checkpointer=saver)
        ask(agent_graph)
        thread = agent_graph.get_state(THREAD).values["mendgraph_budget"]["thread"]
        with closing(SpendingStore()) as book:
            for output in (3, 128_000):  # the maximum of its model, which is not limited
                lost = Entry(
                    thread=thread, model="m", purpose="reply", input_tokens=7, output_tokens=output, cost_usd=None
                )
                assert isinstance(book.reserve(lost, RunLimits()), int)
        agent_graph = agent(server, BudgetMiddleware(max_calls_per_session=9), checkpointer=saver)
        ask(agent_graph)
    assert spending_of(agent_graph)["usage"][:3] == [4, 34, 2 * 5 + 3 + LEAST_CUT_OFF]


def test_cancelled_call_is_charged_with_its_input() -> None:
    async def cancel(agent_graph: Any) -> None:
        call = asyncio.ensure_future(agent_graph.ainvoke({"messages": [("user", "Look.")]}, THREAD))
        while not server.requests:  # noqa: ASYNC110 - the server is in another thread
            await asyncio.sleep(0)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call

    with ScriptedServer([Stall(0), Say("Done.", usage=(10, 5))]) as server:
        agent_graph = agent(server, BudgetMiddleware(max_calls_per_session=9), checkpointer=InMemorySaver())
        asyncio.run(cancel(agent_graph))
        ask(agent_graph)
    calls, inputs, outputs, _ = spending_of(agent_graph)["usage"]
    assert (calls, outputs) == (2, 5)
    assert inputs > 10


def test_account_limit_applies_to_all_agents() -> None:
    limits: dict[str, Any] = {"account": "test_an_account", "max_tokens_per_account": 5_000}
    with endless_reader() as server:
        assert "Limit 'max_tokens_per_account' reached" in ask(agent(server, BudgetMiddleware(**limits)))[-1].text
        first_requests = len(server.requests)
        with pytest.raises(AgentStoppedError, match="test_an_account") as stopped:
            ask(agent(server, BudgetMiddleware(**limits, exit_behavior="error")))
    assert stopped.value.cause.reason == "account_limit"
    spent_by = account_spent("test_an_account")
    assert isinstance(spent_by, AccountSpent)
    assert (first_requests, len(server.requests), spent_by.tokens) == (2, 3, 3_300)


@slow
@sync_and_async
def test_parallel_subagents_share_the_limits_of_the_session(loop: bool) -> None:
    task = ("task", '{"description": "Look.", "subagent_type": "scout"}')
    numbers = count()

    def chief_or_scout(request: dict[str, Any]) -> Calls:
        is_scout = "You are a scout" in str(request["messages"][0])
        return Calls([("look", f'{{"path": "{next(numbers)}.py"}}')] if is_scout else [task] * 3)

    with ScriptedServer(then=chief_or_scout) as server:
        budget = BudgetMiddleware(max_calls_per_session=4)
        scout: Any = {"name": "scout", "description": "Looks.", "system_prompt": "You are a scout.", "tools": [look]}
        agent_graph = deep_agent(
            server, budget, subagents=[scout | {"middleware": [budget]}], checkpointer=InMemorySaver()
        )
        last = ask(agent_graph, loop)[-1]
    assert last.text == "Limit 'max_calls_per_session' exceeded: 4/4"
    assert len(server.requests) == 4


@slow
def test_parallel_call_in_progress_is_reserved_in_full() -> None:
    """It counts as a usual reply only once its process was killed; otherwise two parallel calls exceed the limit."""
    task = ("task", '{"description": "Look.", "subagent_type": "scout"}')
    both_at_once, outcomes = threading.Barrier(2), []

    def chief_or_scout(request: dict[str, Any]) -> Calls | Say:
        if "You are a scout" not in str(request["messages"][0]):
            answered = any(message["role"] == "tool" for message in request["messages"])
            return Say("Done.", usage=(10, 5)) if answered else Calls([task] * 2, usage=(10, 5))
        try:
            both_at_once.wait(2)
            outcomes.append("both")
        except threading.BrokenBarrierError:
            outcomes.append("alone")
        return Say("It has three lines.", usage=(10, 5))

    with ScriptedServer(then=chief_or_scout) as server:
        budget = BudgetMiddleware(max_output_tokens_per_session=40_000, max_output_tokens_per_call=40_000)
        scout: Any = {"name": "scout", "description": "Looks.", "system_prompt": "You are a scout.", "tools": [look]}
        agent_graph = deep_agent(
            server, budget, subagents=[scout | {"middleware": [budget]}], checkpointer=InMemorySaver()
        )
        assert ask(agent_graph)[-1].text == "Done."
    assert "both" not in outcomes


NO_LIMITS: list[tuple[dict[str, Any], str]] = [
    ({}, "needs at least one limit, such as max_cost_usd=0.5"),
    ({"max_usd": 1}, "'max_usd' is not a limit of BudgetMiddleware. Limits: account, "),
    ({"max_calls_per_turn": 0}, "max_calls_per_turn"),
    ({"max_calls_per_turn": 1, "exit_behavior": "continue"}, "'end' or 'error', not 'continue'"),
]


def test_invalid_limit_is_refused() -> None:
    for limits, words in NO_LIMITS:
        with pytest.raises(ValueError, match=words):
            BudgetMiddleware(**limits)
