import asyncio
import gc
import sys
from collections.abc import Callable, Mapping
from importlib.metadata import version
from types import SimpleNamespace
from typing import Any

import httpx2
import pytest
from langchain_core.language_models.fake_chat_models import FakeListChatModel, GenericFakeChatModel
from langchain_core.messages import AIMessage
from langchain_openai import ChatOpenAI
from pydantic import SecretStr

from mendgraph.graph.langchain import chat_models
from mendgraph.graph.langchain.chat_model import ChatModel
from mendgraph.graph.langchain.chat_models import ChatModels, endpoint_chat, given_model
from mendgraph.graph.langchain.failures import Learned, Provider
from mendgraph.graph.langchain.wrapped_models import Single
from mendgraph.nodes.call_model import local_model
from mendgraph.nodes.call_model.endpoint import PLAIN, Endpoint, ModelChoice, ModelOptions
from mendgraph.nodes.call_model.prompts.prompt import Prompt
from mendgraph.nodes.records import ModelReply, ProviderErrorKind, ProviderFailure
from tests.doubles.scripted_server import LenientServer, Say, ScriptedServer, Status
from tests.graph.langchain.asked_models import CALL, MESSAGES, TOOL, ask, at, event, of, replied, streamed
from tests.providers.servers import FAMILIES, say

TOOLS = CALL.model_copy(update={"prompt": Prompt(messages=MESSAGES, tools=(TOOL, {**TOOL}))})


def environment(**variables: str) -> Callable[[], Mapping[str, str]]:
    return lambda: variables


def connected(models: ChatModels, model: str | None, base_url: str | None = None, **more: Any) -> ChatModel:
    found = models.connect(ModelChoice(model=model, base_url=base_url, **more))
    assert isinstance(found, ChatModel), found
    return found


def refused(models: ChatModels, model: str | None, **more: Any) -> str:
    found = models.connect(ModelChoice(model=model, base_url=None, **more))
    assert isinstance(found, ProviderFailure)
    assert (found.kind, found.sent) == (ProviderErrorKind.MODEL_UNAVAILABLE, False)
    return found.message


# --- The user's own


def test_given_chat_model_answers_whatever_a_run_names() -> None:
    with ScriptedServer(then=lambda _: Say("Hello")) as server:
        own = ChatOpenAI(model="own", base_url=server.base_url, api_key=SecretStr("sk-own"), max_retries=5)
        models = ChatModels(environment(OPENAI_API_KEY="sk-1"), [Single(own, {})])
        model = connected(models, "other", "http://llm.test/v1", options=ModelOptions(reasoning_effort="low"))
        assert replied(model).text == "Hello"
        assert models.known("x", None, PLAIN) is not None
    [request] = server.requests
    assert (request["model"], request["reasoning_effort"]) == ("own", "low")
    assert server.headers[0]["authorization"] == "Bearer sk-own"
    assert own.max_retries == 5
    models.close()


def test_tries_of_a_given_chat_model_are_ours_to_count() -> None:
    with ScriptedServer([Status(500), Say("never")]) as server:
        own = ChatOpenAI(model="own", base_url=server.base_url, api_key=SecretStr("sk-own"), max_retries=5)
        result, _ = ask(given_model(own))
    assert isinstance(result, ProviderFailure)
    assert (len(server.requests), "own through ChatOpenAI failed" in result.message) == (1, True)


def test_what_a_run_sets_of_a_chat_model_of_the_users_own_is_sent() -> None:
    with LenientServer(then=lambda _: Say("Hello")) as server:
        own = ChatOpenAI(model="own", base_url=server.base_url, api_key=SecretStr("k"), top_p=0.1)
        options = ModelOptions(model_kwargs={"top_p": 0.5, "top_k": 5})
        assert replied(connected(ChatModels(environment(), [Single(own, {})]), None, options=options)).text == "Hello"
        assert replied(connected(ChatModels(environment(), [Single(own, {})]), None)).text == "Hello"
    first, second = server.requests
    assert (first["top_p"], first["top_k"]) == (0.5, 5)
    assert (second["top_p"], "top_k" in second) == (0.1, False)


def test_query_that_is_set_goes_with_each_request() -> None:
    with ScriptedServer(then=lambda _: Say("Hello")) as server:
        options = ModelOptions(model_kwargs={"default_query": {"v": "1"}})
        ask(connected(ChatModels(environment(OPENAI_API_KEY="sk-1")), "m", server.base_url, options=options))
    assert server.paths == ["/v1/chat/completions?v=1"]


def test_fake_models_of_langchain_say_one_reply_after_the_other() -> None:
    for own in (
        FakeListChatModel(responses=["a", "b"]),
        GenericFakeChatModel(messages=iter([AIMessage("a"), AIMessage("b")])),
    ):
        model = given_model(own)
        assert [replied(model).text, replied(model).text] == ["a", "b"]


# --- A provider's, by its name


def test_providers_package_answers_for_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    with FAMILIES["anthropic"]([say("Hello")]) as server:
        monkeypatch.setenv("ANTHROPIC_API_KEY", server.key)
        models = ChatModels(environment(OPENAI_API_KEY="sk-1"))
        options = ModelOptions(model_kwargs={"max_retries": 3})
        model = connected(models, f"anthropic:{server.model}", server.url, options=options)
        assert replied(model).text == "Hello"
        assert connected(models, f"anthropic:{server.model}", server.url, options=options) is model
        assert connected(models, f"anthropic:{server.model}", server.url) is not model
        assert models.known(f"anthropic:{server.model}", server.url, options) is model
    assert server.key in server.requests[0].headers["authorization"]


def test_package_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "langchain_groq", None)
    message = refused(ChatModels(environment()), "groq:llama-3.3-70b")
    assert message.startswith("groq:llama-3.3-70b needs a package that is not installed: run `")
    assert message.endswith(" langchain-groq`")


def test_what_a_profile_says_of_a_name_is_known_before_the_first_call() -> None:
    models = ChatModels(environment(OPENAI_API_KEY="k"))
    model = models.known("o3-mini", None, PLAIN)
    assert model is not None
    assert model.takes("image") is False
    assert models.connect(ModelChoice(model="o3-mini", base_url=None)) is model
    assert models.known("local", None, PLAIN) is None


@pytest.mark.filterwarnings("ignore:WARNING! reasoning_effort is not default parameter:UserWarning")
def test_setting_that_a_chat_model_does_not_have_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MISTRAL_API_KEY", "k")
    message = refused(ChatModels(environment()), "mistralai:m", options=ModelOptions(reasoning_effort="high"))
    assert message == "ChatMistralAI has no reasoning_effort: leave it empty, or use model_kwargs."


# --- An endpoint's


def sent_by(endpoint: Endpoint, options: ModelOptions = PLAIN) -> httpx2.Request:
    """The request that a call makes there."""
    requests: list[httpx2.Request] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        requests.append(request)
        return streamed(event({"content": "Hello"}, "stop"))(request)

    chat = endpoint_chat(endpoint, options, verify=False, transport=httpx2.MockTransport(answer), in_loop=True)
    model = of(chat, Provider("it", endpoint=True), Learned(), endpoint.model)
    assert isinstance(ask(model)[0], ModelReply)
    return requests[0]


USUAL = Endpoint(model="m", base_url="http://llm.test/v1", api_key=SecretStr("sk-usual"))
FOREIGN = Endpoint(model="m", base_url="http://other.test/v1", key_variable="MENDGRAPH_API_KEY_OTHER_TEST")


class AtOnce(httpx2.AsyncBaseTransport):
    """Answers when so many requests have come; `closed` counts the clients that have closed it."""

    def __init__(self, requests: int) -> None:
        self.closed, self._all = 0, asyncio.Barrier(requests)

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        await self._all.wait()
        return streamed(event({"content": "Hello"}, "stop"))(request)

    async def aclose(self) -> None:
        self.closed += 1


@pytest.mark.parametrize(("at_once", "clients"), [(1, 1), (20, 3)])
def test_requests_at_once_are_spread_over_clients_and_all_of_them_are_closed(at_once: int, clients: int) -> None:
    async def twice() -> int:
        transport = AtOnce(at_once)
        chat: Any = endpoint_chat(USUAL, PLAIN, verify=False, transport=transport, in_loop=True)
        model = of(chat, Provider("it", endpoint=True), Learned(), "m")
        for _ in range(2):
            replies = await asyncio.gather(*(model.acomplete(CALL, lambda _: None) for _ in range(at_once)))
            assert all(isinstance(each, ModelReply) for each in replies)
        await chat.http_clients.aclose()
        return transport.closed

    assert asyncio.run(twice()) == clients


@pytest.mark.parametrize(
    ("endpoint", "own"),
    [(USUAL, True), (FOREIGN, False), (USUAL.model_copy(update={"embedded": True, "api_key": SecretStr("x")}), False)],
    ids=["the usual endpoint", "another host", "the embedded model"],
)
def test_what_is_meant_for_the_usual_endpoint_goes_to_no_other(
    endpoint: Endpoint, own: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-usual")
    monkeypatch.setenv("OPENAI_ORG_ID", "org-1")
    monkeypatch.setenv("OPENAI_PROJECT_ID", "proj-1")
    monkeypatch.setenv("OPENAI_CUSTOM_HEADERS", "X-Corp: secret-corp")
    headers = sent_by(endpoint).headers
    assert headers["user-agent"] == f"mendgraph/{version('mendgraph')}"
    assert not [name for name in headers if name.startswith("x-stainless") and name != "x-stainless-raw-response"]
    meant = ("org-1", "proj-1", "secret-corp", "Bearer sk-usual")
    assert [value in headers.values() for value in meant] == [own] * 4


def test_endpoint_on_this_machine_is_asked_without_the_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "ALL_PROXY", "http_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.delenv("NO_PROXY", raising=False)
    with ScriptedServer([Say("Hello")]) as server:
        assert replied(at(server.base_url)).text == "Hello"
    result, _ = ask(at("http://llm.test/v1"))
    assert isinstance(result, ProviderFailure)
    assert result.kind is ProviderErrorKind.CONNECTION


def test_failed_request_is_sent_once_whatever_the_sdk_would_do() -> None:
    with ScriptedServer(then=lambda _: Status(500)) as server:
        model = at(server.base_url)
        assert isinstance(ask(model)[0], ProviderFailure)
        model.learned.streams = False  # so that the SDK itself sends the request
        assert isinstance(ask(model)[0], ProviderFailure)
    assert len(server.requests) == 2


def test_changed_key_of_the_environment_is_sent_with_the_next_connection() -> None:
    variables = {"OPENAI_API_KEY": "sk-1"}
    with ScriptedServer(then=lambda _: Say("Hello")) as server:
        variables["OPENAI_BASE_URL"] = server.base_url
        models = ChatModels(lambda: variables)
        for key in ("sk-1", "sk-2", "sk-1"):
            variables["OPENAI_API_KEY"] = key
            assert replied(connected(models, "m")).text == "Hello"
    assert [each["authorization"] for each in server.headers] == ["Bearer sk-1", "Bearer sk-2", "Bearer sk-1"]


@pytest.mark.parametrize(
    ("model", "base_url", "name"),
    [
        ("gpt-4o", "", "max_completion_tokens"),
        ("gpt-4o", "https://api.openai.com/v1", "max_completion_tokens"),
        ("gpt-4o", "http://llm.test/v1", "max_tokens"),
        ("gpt-5-mini", "http://llm.test/v1", "max_completion_tokens"),
        ("openai/gpt5", "http://llm.test/v1", "max_completion_tokens"),
        ("o3", "http://llm.test/v1", "max_completion_tokens"),
        ("openai/o4-mini", "http://llm.test/v1", "max_completion_tokens"),
        ("o1x", "http://llm.test/v1", "max_tokens"),
        ("qwen3-coder", "http://llm.test/v1", "max_tokens"),
    ],
)
def test_limit_of_a_reply_has_the_name_that_the_endpoint_likely_takes(model: str, base_url: str, name: str) -> None:
    assert at(base_url, model=model).learned.limit_name == name


def test_connection_is_waited_for_ten_seconds_and_a_reply_as_long_as_its_call() -> None:
    chat: Any = endpoint_chat(USUAL, PLAIN, verify=False, in_loop=True)
    with chat.http_clients.one() as client:
        assert client.timeout == httpx2.Timeout(None, connect=10.0)


def test_settings_that_cannot_be_used_are_refused_before_anything_is_sent() -> None:
    models = ChatModels(environment(OPENAI_BASE_URL="http://127.0.0.1:9/v1"))
    message = refused(models, "m", options=ModelOptions(model_kwargs={"top_p": "much"}))
    assert message.startswith("m cannot be set up (top_p: Input should be a valid number")
    assert "much" not in message


def test_chat_model_is_shared_until_it_is_closed() -> None:
    with ScriptedServer(then=lambda _: Say("Hello")) as server:
        models = ChatModels(environment(OPENAI_BASE_URL=server.base_url))
        first, second, other = connected(models, "m"), connected(models, "m"), connected(models, "n")
        assert first is second is not other
        assert models.known("m", None, PLAIN) is first
        assert isinstance(first.complete(CALL, print), ModelReply)
        models.close()
        assert models.known("m", None, PLAIN) is not first
        asyncio.run(models.aclose())
    gc.collect()


def test_where_no_model_is_named_the_served_one_is_taken() -> None:
    with ScriptedServer([Say("Hello")]) as server:
        assert replied(connected(ChatModels(environment()), None, server.base_url)).text == "Hello"
    assert server.requests[0]["model"] == "scripted"


@pytest.mark.parametrize(
    ("models", "message"),
    [
        (httpx2.Response(200, json={"data": [{"id": "b"}, {"id": "a"}]}), "serves 2 models (a, b)"),
        (httpx2.Response(500, json={"error": {"message": "broken"}}), "failed (broken)"),
        (httpx2.Response(200, content=b"<html>"), "sent no chat completion"),
    ],
)
def test_endpoint_that_cannot_name_its_model(
    models: httpx2.Response, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def chat(endpoint: Endpoint, options: ModelOptions, **more: Any) -> Any:
        return made(endpoint, options, **{**more, "transport": httpx2.MockTransport(lambda _: models)})

    made = chat_models.endpoint_chat
    monkeypatch.setattr(chat_models, "endpoint_chat", chat)
    found = ChatModels(environment()).connect(ModelChoice(model=None, base_url="http://llm.test/v1"))
    assert isinstance(found, ProviderFailure)
    assert message in found.message


# --- The embedded one


def test_embedded_model_is_started_or_says_why_not(monkeypatch: pytest.MonkeyPatch) -> None:
    absent = ProviderFailure(kind=ProviderErrorKind.MODEL_UNAVAILABLE, message="Run `mendgraph model pull`.")
    models = ChatModels(environment())
    with ScriptedServer([Status(500)]) as server:
        monkeypatch.setattr(local_model, "shared_local_server", lambda: absent)
        assert models.connect(ModelChoice(model="local", base_url=None)) == absent
        local = SimpleNamespace(model="m", base_url=server.base_url)
        monkeypatch.setattr(local_model, "shared_local_server", lambda: local)
        result, _ = ask(connected(models, None))
    assert isinstance(result, ProviderFailure)
    assert result.message == "the embedded model failed (scripted status 500)."
