"""`BudgetMiddleware` on models that LangChain wraps, and beside middleware that repeats calls: its limits hold."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import ModelFallbackMiddleware, ModelRetryMiddleware, wrap_model_call
from langchain.chat_models import init_chat_model
from langchain_core.language_models import GenericFakeChatModel
from langchain_core.messages import AIMessage
from langchain_core.runnables import ConfigurableField, RunnableConfig, RunnableLambda
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver
from pydantic import SecretStr

from mendgraph import BudgetMiddleware
from tests.doubles.scripted_server import Say, ScriptedServer, Status
from tests.extent import slow
from tests.langchain.agents import THREAD, ask, look

HALF: RunnableConfig = {"configurable": {"thread_id": "1", "model": "gpt-4o", "which": "large"}}
MINI_USD = 1_000 * 0.15e-6 + 100 * 0.6e-6
LARGE_USD = 1_000 * 2.5e-6 + 100 * 10e-6


def model(server: ScriptedServer, name: str = "gpt-4o-mini", **settings: Any) -> ChatOpenAI:
    """A chat model without retries of its own."""
    key = SecretStr("a-key-of-nobody")
    return ChatOpenAI(model=name, base_url=server.base_url, api_key=key, max_retries=0, **settings)


def configurable_model(server: ScriptedServer) -> Any:
    settings: Any = {"base_url": server.base_url, "api_key": "a-key-of-nobody", "max_retries": 0}
    return init_chat_model("openai:gpt-4o-mini", configurable_fields=("model",), **settings)


def alternatives(server: ScriptedServer) -> Any:
    which = ConfigurableField(id="which")
    return model(server).configurable_alternatives(which, default_key="small", large=model(server, "gpt-4o"))


WRAPPERS: dict[str, tuple[Callable[[ScriptedServer], Any], str]] = {
    "plain": (model, "gpt-4o-mini"),
    "with_config": (lambda server: model(server).with_config(tags=["x"]), "gpt-4o-mini"),
    "bind": (lambda server: model(server).bind(temperature=0.5), "gpt-4o-mini"),
    "bind(max_tokens)": (lambda server: model(server).bind(max_tokens=5_000), "gpt-4o-mini"),
    "bind(model)": (lambda server: model(server).bind(model="gpt-4o"), "gpt-4o"),
    "configurable_fields": (
        lambda server: model(server).configurable_fields(model_name=ConfigurableField(id="model")),
        "gpt-4o",
    ),
    "configurable_alternatives": (alternatives, "gpt-4o"),
    "init_chat_model": (configurable_model, "gpt-4o"),
    "all of them": (
        lambda server: alternatives(server).with_config(tags=["x"]).bind(max_tokens=9_000),
        "gpt-4o",
    ),
}


def cost(agent: Any) -> float:
    spending: dict[str, Any] = agent.get_state(THREAD).values["mendgraph_budget"]["spending"]
    usd: float = spending["cost_usd"]
    return usd


@slow
@pytest.mark.parametrize(("name", "loop"), [(name, bool(number % 2)) for number, name in enumerate(WRAPPERS)])
def test_reply_of_a_wrapped_model_is_limited_and_charged_at_the_price_of_that_model(name: str, loop: bool) -> None:
    wrap, answers = WRAPPERS[name]
    tools: Any = [look] if loop else []
    with ScriptedServer(then=lambda _: Say("Done.", usage=(1_000, 100))) as server:
        budget = BudgetMiddleware(max_output_tokens_per_call=120, max_cost_usd=1.0)
        agent: Any = create_agent(wrap(server), tools, middleware=[budget], checkpointer=InMemorySaver())
        ask(agent, loop, HALF)
    [request] = server.requests
    assert (request["model"], request["max_completion_tokens"]) == (answers, 120)
    assert cost(agent) == pytest.approx(MINI_USD if answers == "gpt-4o-mini" else LARGE_USD)
    assert request.get("temperature") == (0.5 if name == "bind" else None)


@pytest.mark.parametrize(("inside", "loop"), [(True, False), (False, True)])
def test_retries_of_other_middleware_count_as_calls_in_either_order(inside: bool, loop: bool) -> None:
    with ScriptedServer(then=lambda _: Status(503)) as server:
        others: Any = [ModelRetryMiddleware(max_retries=9, initial_delay=0), ModelFallbackMiddleware(model(server))]
        budget = BudgetMiddleware(max_calls_per_turn=5)
        agent: Any = create_agent(model(server), [], middleware=[budget, *others] if inside else [*others, budget])
        last = ask(agent, loop)[-1]
    assert last.text == "Limit 'max_calls_per_turn' exceeded: 5/5"
    assert len(server.requests) == 5


@pytest.mark.parametrize(("inside", "loop"), [(True, True), (False, False)])
def test_fallback_of_other_middleware_is_charged_at_its_own_price(inside: bool, loop: bool) -> None:
    with ScriptedServer([Status(503), Say("Done.", usage=(1_000, 100))]) as server:
        other: Any = ModelFallbackMiddleware(model(server, "gpt-4o", max_tokens=300))
        budget = BudgetMiddleware(max_cost_usd=1.0)
        order: Any = [budget, other] if inside else [other, budget]
        agent: Any = create_agent(model(server), [], middleware=order, checkpointer=InMemorySaver())
        ask(agent, loop)
    assert [request["model"] for request in server.requests] == ["gpt-4o-mini", "gpt-4o"]
    assert cost(agent) == pytest.approx(LARGE_USD)


def test_request_whose_reply_cannot_be_limited_is_not_sent() -> None:
    with ScriptedServer(then=lambda _: Say("Done.")) as server:
        large = model(server, "gpt-4o")
        chooses: Any = wrap_model_call(lambda request, handler: handler(request.override(model=large)))
        budget: Any = BudgetMiddleware(max_output_tokens_per_call=120)
        with pytest.raises(ValueError, match="cannot limit the reply of gpt-4o that other middleware asks"):
            ask(create_agent(model(server), [], middleware=[budget, chooses]))
        assert not server.requests
        ask(create_agent(model(server), [], middleware=[chooses, budget]))  # as the error says
        assert server.requests[0]["max_completion_tokens"] == 120


@slow
def test_call_of_inner_middleware_is_counted_once_and_a_skipped_call_not_at_all() -> None:
    @wrap_model_call
    def answers(request: Any, handler: Any) -> Any:
        return AIMessage("I know that.") if request.messages else handler(request)

    @wrap_model_call
    def in_a_thread(request: Any, handler: Any) -> Any:
        with ThreadPoolExecutor(1) as pool:  # without LangChain's context
            return pool.submit(handler, request).result()

    for other, calls in ((answers, 0), (in_a_thread, 1)):
        with ScriptedServer(then=lambda _: Say("Done.", usage=(1_000, 100))) as server:
            middleware: Any = [BudgetMiddleware(max_cost_usd=1.0), other]
            agent: Any = create_agent(model(server), [], middleware=middleware, checkpointer=InMemorySaver())
            ask(agent)
        assert len(server.requests) == calls
        assert cost(agent) == pytest.approx(calls * MINI_USD)


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
def test_model_settings_of_other_middleware_cannot_exceed_the_limit(name: str) -> None:
    longer: Any = wrap_model_call(
        lambda request, handler: handler(request.override(model_settings={name: 5_000, "temperature": 0.25}))
    )
    with ScriptedServer(then=lambda _: Say("Done.")) as server:
        outside = BudgetMiddleware(max_output_tokens_per_call=120)
        ask(create_agent(model(server), [], middleware=[longer, outside]))
        [request] = server.requests
        assert (request["max_completion_tokens"], request["temperature"]) == (120, 0.25)
        assert "max_tokens" not in request
        inside = BudgetMiddleware(max_output_tokens_per_session=200)
        last = ask(create_agent(model(server), [], middleware=[inside, longer]))[-1]
    assert last.text.startswith("The remaining budget is below the 5000 output tokens")
    assert len(server.requests) == 1


def test_model_whose_limits_cannot_be_enforced_is_refused_with_the_remedy() -> None:
    rows: list[tuple[Any, str]] = [
        (GenericFakeChatModel(messages=iter([AIMessage("Hi.")])), "replies of GenericFakeChatModel: it has no field"),
        (RunnableLambda(lambda _: AIMessage("Hi.")), "a RunnableLambda hides which model it asks"),
        (init_chat_model(configurable_fields=("model",)), "has no default model here: name one"),
        (GenericFakeChatModel(messages=iter(())).with_retry(), "does not see the attempts of with_retry"),
        (
            GenericFakeChatModel(messages=iter(())).with_fallbacks([GenericFakeChatModel(messages=iter(()))]),
            "does not see the attempts of with_retry and with_fallbacks: use ModelRetryMiddleware and",
        ),
        (
            GenericFakeChatModel(messages=iter(())).with_fallbacks([], exception_key="error"),
            r"with_fallbacks\(exception_key=...\) is for chains whose input is a dict",
        ),
    ]
    for wrapped, error in rows:
        agent: Any = create_agent(wrapped, [], middleware=[BudgetMiddleware(max_output_tokens_per_session=500)])
        with pytest.raises((TypeError, ValueError), match=error):
            ask(agent)
    fake = GenericFakeChatModel(messages=iter([AIMessage("Hi."), AIMessage("Hi again.")]))
    budget: Any = BudgetMiddleware(max_calls_per_session=1)  # a limit on calls holds for any
    agent = create_agent(fake, [], middleware=[budget], checkpointer=InMemorySaver())
    assert [ask(agent)[-1].text, ask(agent)[-1].text] == ["Hi.", "Limit 'max_calls_per_session' exceeded: 1/1"]
