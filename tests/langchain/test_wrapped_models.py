"""Models that LangChain wraps, as the model of a run: they are supported, or refused with the reason."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from langchain.agents.middleware import AgentMiddleware
from langchain.chat_models import init_chat_model
from langchain_core.messages import HumanMessage
from langchain_core.runnables import ConfigurableField, RunnableLambda
from langchain_openai import ChatOpenAI
from pydantic import BaseModel, SecretStr

from mendgraph import AgentContext, Session, build_graph, run_task
from tests.doubles.scripted_server import Calls, Reply, Say, ScriptedServer, Status
from tests.extent import slow

USAGE = (1_000, 100)
MINI_USD = 1_000 * 0.15e-6 + 100 * 0.6e-6
LARGE_USD = 1_000 * 2.5e-6 + 100 * 10e-6


def context(folder: Path, **settings: Any) -> AgentContext:
    off: dict[str, Any] = dict.fromkeys(("evidence", "read_ahead", "audit"), False)
    return AgentContext(workspace=str(folder), protocol="native", **{"provider_retries": 0, **off, **settings})


def model(server: ScriptedServer, name: str = "gpt-4o-mini", **settings: Any) -> ChatOpenAI:
    key = SecretStr("a-key-of-nobody")
    return ChatOpenAI(model=name, base_url=server.base_url, api_key=key, **settings)


def by_name(server: ScriptedServer) -> Any:
    settings: Any = {"base_url": server.base_url, "api_key": "a-key-of-nobody"}
    return init_chat_model("openai:gpt-4o-mini", configurable_fields=("model",), **settings)


def alternatives(server: ScriptedServer) -> Any:
    which = ConfigurableField(id="which")
    return model(server).configurable_alternatives(which, default_key="small", large=model(server, "gpt-4o"))


Wrap = Callable[[ScriptedServer], Any]
WRAPPERS: dict[str, tuple[Wrap, dict[str, Any], dict[str, Any]]] = {
    "with_config": (lambda server: model(server).with_config(tags=["x"]), {}, {}),
    "bind": (lambda server: model(server).bind(temperature=0.5), {}, {"temperature": 0.5}),
    "bind(max_tokens)": (lambda server: model(server).bind(max_tokens=50), {}, {"max_completion_tokens": 50}),
    "with_retry": (lambda server: model(server).with_retry(), {}, {}),
    "with_fallbacks": (lambda server: model(server).with_fallbacks([model(server, "gpt-4o")]), {}, {}),
    "configurable_fields": (
        lambda server: model(server).configurable_fields(model_name=ConfigurableField(id="model")),
        {"model": "gpt-4o"},
        {"model": "gpt-4o"},
    ),
    "configurable_alternatives": (alternatives, {"which": "large"}, {"model": "gpt-4o"}),
    "init_chat_model": (by_name, {"model": "gpt-4o"}, {"model": "gpt-4o"}),
}


@pytest.mark.parametrize("name", WRAPPERS)
def test_run_calls_the_model_inside_the_wrapper_and_pays_its_price(name: str, tmp_path: Path) -> None:
    wrap, configurable, sent = WRAPPERS[name]
    turn_input: Any = {"messages": [HumanMessage("Hello!")]}
    config: Any = {"configurable": {"thread_id": "1", **configurable}}
    with ScriptedServer(then=lambda _: Say("Done.", usage=USAGE)) as server:
        limits = context(tmp_path, max_output_tokens_per_call=120, max_cost_usd=1.0)
        graph = build_graph(model=wrap(server), context=limits)
        results = [graph.invoke(turn_input, config), asyncio.run(graph.ainvoke(turn_input, config))]
    for result, request in zip(results, server.requests, strict=True):
        assert result["outcome"].kind == "FINISHED"
        expected = {"model": "gpt-4o-mini", "max_completion_tokens": 120, **sent}
        assert {key: request[key] for key in expected} == expected
        price = LARGE_USD if request["model"] == "gpt-4o" else MINI_USD
        assert result["outcome"].usage["cost_usd"] == pytest.approx(price)


@slow
def test_fallbacks_of_a_wrapper_are_called_in_order_and_each_attempt_is_counted(tmp_path: Path) -> None:
    script: list[Reply] = [Status(503), Status(503), Say("Done.", usage=USAGE)]
    with ScriptedServer(script) as server:
        wrapped = model(server).with_retry(stop_after_attempt=9).with_fallbacks([model(server, "gpt-4o")])
        result = run_task("Hello!", context(tmp_path, provider_retries=1), model=wrapped)
    assert result.outcome.kind == "FINISHED"
    assert [request["model"] for request in server.requests] == ["gpt-4o-mini", "gpt-4o-mini", "gpt-4o"]
    assert result.usage["total_calls"] == 3
    assert result.usage["cost_usd"] == pytest.approx(LARGE_USD)


def test_extra_headers_and_extra_body_of_a_bound_model_are_applied(tmp_path: Path) -> None:
    with ScriptedServer(then=lambda _: Say("Done.")) as server:
        bound = model(server).bind(extra_headers={"X-Team": "a"}, extra_body={"user": "b"}, service_tier="flex")
        result = run_task("Hello!", context(tmp_path), model=bound)
    assert result.outcome.kind == "FINISHED"
    [request], [headers] = server.requests, server.headers
    assert (headers["x-team"], request["user"], request["service_tier"]) == ("a", "b", "flex")
    assert "extra_headers" not in request


def test_session_and_hooks_accept_wrapped_models(tmp_path: Path) -> None:
    class Second(AgentMiddleware[Any, Any, Any]):
        def wrap_model_call(self, request: Any, handler: Any) -> Any:
            return handler(request.override(model=other))

    with ScriptedServer(then=lambda _: Say("Done.", usage=USAGE)) as server:
        other = model(server, "gpt-4o").bind(temperature=0.25)
        options: Any = {"model": model(server).bind(temperature=0.5), "middleware": [Second()]}
        with Session(context(tmp_path), **options) as session:
            session.work("Hello!")
            assert session.result().outcome.kind == "FINISHED"
    [request] = server.requests
    assert (request["model"], request["temperature"]) == ("gpt-4o", 0.25)


class Number(BaseModel):
    number: int


REFUSED: tuple[tuple[Wrap, str], ...] = (
    (lambda server: model(server) | RunnableLambda(str), "model: a RunnableSequence hides which model it asks"),
    (lambda server: model(server).with_structured_output(Number), "model: a RunnableSequence hides"),
    (lambda server: model(server).bind_tools([Number]), r"bind\(tools=...\) is for the machine to decide: pass"),
    (
        lambda server: model(server).with_fallbacks([model(server)], exceptions_to_handle=(ValueError,)),
        r"with_fallbacks\(exceptions_to_handle=...\) chooses by exceptions",
    ),
    (lambda server: model(server).with_listeners(on_end=print), "the listeners of with_listeners hear one call"),
    (lambda _: init_chat_model(configurable_fields=("model",)), "has no default model here: name one"),
)


def test_unsupported_wrapper_is_refused_with_the_reason() -> None:
    for wrap, reason in REFUSED:
        with ScriptedServer() as server, pytest.raises(TypeError, match=reason):
            build_graph(model=wrap(server))


def test_cost_limit_needs_a_price_for_each_fallback(tmp_path: Path) -> None:
    with ScriptedServer() as server:
        wrapped = model(server).with_fallbacks([model(server, "nobody-knows-its-price")])
        result = run_task("Hello!", context(tmp_path, max_cost_usd=1.0), model=wrapped)
    assert "nobody-knows-its-price" in result.outcome.message
    assert not server.requests


def test_key_of_each_fallback_is_a_secret(tmp_path: Path) -> None:
    key = "sk-0a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7R"
    (tmp_path / "a.txt").write_text(f"The value is {key[3:]}.\n")
    read = Calls([("read_file", '{"path": "a.txt"}')])
    with ScriptedServer([read, Say("Done.")]) as server:
        other = ChatOpenAI(model="gpt-4o", base_url=server.base_url, api_key=SecretStr(key[3:]))
        run_task("What is in a.txt?", context(tmp_path), model=model(server).with_fallbacks([other]))
    assert key[3:] not in str(server.requests)
