"""Which chat model a run calls, and what is sent to it: the user's own, a provider's by name, or an endpoint's."""

import asyncio
import sys
from importlib.metadata import version
from types import SimpleNamespace
from typing import Any

import httpx2
import pytest
from langchain_core.language_models.fake_chat_models import FakeListChatModel, GenericFakeChatModel
from langchain_core.messages import AIMessage
from langchain_openai import ChatOpenAI
from pydantic import SecretStr

from mendgraph.graph.langchain import endpoint_models
from mendgraph.graph.langchain.chat_model import ChatModel
from mendgraph.graph.langchain.chat_models import ChatModels, user_model
from mendgraph.graph.langchain.endpoint_models import endpoint_chat
from mendgraph.graph.langchain.failures import Learned, Provider
from mendgraph.graph.langchain.wrapped_models import Single
from mendgraph.nodes.call_model import local_model
from mendgraph.nodes.call_model.endpoint import PLAIN, Endpoint, ModelChoice, ModelOptions
from mendgraph.nodes.records import ModelReply, ProviderErrorKind, ProviderFailure
from tests.doubles.scripted_server import LenientServer, Say, ScriptedServer, Status
from tests.langchain.model_calls import CALL, ask, event, model_at, model_of, reply_of, stream_events
from tests.providers.servers import FAMILIES, say


def models_with(chat_model: Any = None, **variables: str) -> ChatModels:
    """The chat models of a process with these environment variables."""
    return ChatModels(variables, [Single(chat_model, {})] if chat_model else [])


def connect(models: ChatModels, model: str | None, base_url: str | None = None, **more: Any) -> ChatModel:
    chat_model = models.connect(ModelChoice(model=model, base_url=base_url, **more))
    assert isinstance(chat_model, ChatModel), chat_model
    return chat_model


def refusal_of(models: ChatModels, model: str | None, base_url: str | None = None, **more: Any) -> str:
    failure = models.connect(ModelChoice(model=model, base_url=base_url, **more))
    assert isinstance(failure, ProviderFailure)
    assert (failure.kind, failure.sent) == (ProviderErrorKind.MODEL_UNAVAILABLE, False)
    return failure.message


def failure_of(model: ChatModel) -> ProviderFailure:
    failure, _ = ask(model)
    assert isinstance(failure, ProviderFailure)
    return failure


# --- The user's own


def test_users_chat_model_answers_whatever_model_the_run_names() -> None:
    with LenientServer(then=lambda _: Say("Hello")) as server:
        chat_model = ChatOpenAI(
            model="own", base_url=server.base_url, api_key=SecretStr("sk-own"), max_retries=5, top_p=0.1
        )
        models = models_with(chat_model, OPENAI_API_KEY="sk-1")
        options = ModelOptions(reasoning_effort="low", model_kwargs={"top_p": 0.5, "top_k": 5})
        assert reply_of(connect(models, "other", "http://llm.test/v1", options=options)).text == "Hello"
        assert reply_of(connect(models, None)).text == "Hello"
        assert models.without_request("x", None, PLAIN) is not None
    first, second = server.requests
    assert (first["model"], first["reasoning_effort"], first["top_p"], first["top_k"]) == ("own", "low", 0.5, 5)
    assert (second["top_p"], "top_k" in second) == (0.1, False)
    assert server.headers[0]["authorization"] == "Bearer sk-own"
    assert chat_model.max_retries == 5
    models.close()


def test_class_of_another_package_with_the_name_of_openais_is_called_as_it_is() -> None:
    class BaseChatOpenAI(FakeListChatModel):
        pass

    model = user_model(BaseChatOpenAI(responses=["Hello."]))
    assert not model.in_openai_form
    assert reply_of(model).text == "Hello."


def test_failed_request_is_not_retried_by_the_sdk() -> None:
    with ScriptedServer(then=lambda _: Status(500)) as server:
        chat_model = ChatOpenAI(model="own", base_url=server.base_url, api_key=SecretStr("sk-own"), max_retries=5)
        assert "own through ChatOpenAI failed" in failure_of(user_model(chat_model)).message
        model = model_at(server.base_url)
        failure_of(model)
        model.learned.streams = False  # so that the SDK itself sends the request
        failure_of(model)
    assert len(server.requests) == 3


def test_fake_models_of_langchain_return_one_reply_after_the_other() -> None:
    for chat_model in (
        FakeListChatModel(responses=["a", "b"]),
        GenericFakeChatModel(messages=iter([AIMessage("a"), AIMessage("b")])),
    ):
        model = user_model(chat_model)
        assert [reply_of(model).text, reply_of(model).text] == ["a", "b"]


# --- A provider's, by its name


def test_model_with_a_provider_prefix_uses_the_providers_package(monkeypatch: pytest.MonkeyPatch) -> None:
    with FAMILIES["anthropic"]([say("Hello")]) as server:
        monkeypatch.setenv("ANTHROPIC_API_KEY", server.key)
        models, name = models_with(OPENAI_API_KEY="sk-1"), f"anthropic:{server.model}"
        options = ModelOptions(model_kwargs={"max_retries": 3})
        model = connect(models, name, server.url, options=options)
        assert reply_of(model).text == "Hello"
        assert connect(models, name, server.url, options=options) is model
        assert connect(models, name, server.url) is not model
        assert models.without_request(name, server.url, options) is model
    headers = server.requests[0].headers
    assert server.key in (headers.get("x-api-key") or headers["authorization"])  # by the version of anthropic


def test_model_profile_is_known_before_the_first_call() -> None:
    models = models_with(OPENAI_API_KEY="k")
    model = models.without_request("o3-mini", None, PLAIN)
    assert model is not None
    assert model.takes("image") is False
    assert models.connect(ModelChoice(model="o3-mini", base_url=None)) is model
    assert models.without_request("local", None, PLAIN) is None


@pytest.mark.filterwarnings("ignore:WARNING! reasoning_effort is not default parameter:UserWarning")
def test_model_that_cannot_be_created_is_refused_before_any_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MISTRAL_API_KEY", "k")
    message = refusal_of(models_with(), "mistralai:m", options=ModelOptions(reasoning_effort="high"))
    assert message == "ChatMistralAI has no reasoning_effort: leave it empty, or use model_kwargs."

    monkeypatch.setitem(sys.modules, "langchain_groq", None)
    message = refusal_of(models_with(), "groq:llama-3.3-70b")
    assert message.startswith("groq:llama-3.3-70b needs a package that is not installed: run `")
    assert message.endswith(" langchain-groq`")

    models = models_with(OPENAI_BASE_URL="http://127.0.0.1:9/v1")
    message = refusal_of(models, "m", options=ModelOptions(model_kwargs={"top_p": "much"}))
    assert message.startswith("m cannot be set up (top_p: Input should be a valid number")
    assert "much" not in message


# --- An endpoint's


def sent_by(endpoint: Endpoint) -> httpx2.Request:
    """The request that a call makes there."""
    requests: list[httpx2.Request] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        requests.append(request)
        return stream_events(event({"content": "Hello"}, "stop"))(request)

    chat = endpoint_chat(endpoint, PLAIN, verify=False, transport=httpx2.MockTransport(answer), in_loop=True)
    model = model_of(chat, Provider("it", endpoint=True), Learned(), endpoint.model)
    assert isinstance(ask(model)[0], ModelReply)
    return requests[0]


USUAL = Endpoint(model="m", base_url="http://llm.test/v1", api_key=SecretStr("sk-usual"))
FOREIGN = Endpoint(model="m", base_url="http://other.test/v1", key_variable="MENDGRAPH_API_KEY_OTHER_TEST")
EMBEDDED = USUAL.model_copy(update={"embedded": True, "api_key": SecretStr("x")})


def test_headers_for_the_default_endpoint_are_sent_to_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-usual")
    monkeypatch.setenv("OPENAI_ORG_ID", "org-1")
    monkeypatch.setenv("OPENAI_PROJECT_ID", "proj-1")
    monkeypatch.setenv("OPENAI_CUSTOM_HEADERS", "X-Corp: secret-corp")
    meant = ("org-1", "proj-1", "secret-corp", "Bearer sk-usual")
    for endpoint, is_usual in ((USUAL, True), (FOREIGN, False), (EMBEDDED, False)):
        headers = sent_by(endpoint).headers
        assert headers["user-agent"] == f"mendgraph/{version('mendgraph')}"
        assert not [name for name in headers if name.startswith("x-stainless") and name != "x-stainless-raw-response"]
        assert [value in headers.values() for value in meant] == [is_usual] * 4


def test_endpoint_on_localhost_is_called_without_the_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "ALL_PROXY", "http_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.delenv("NO_PROXY", raising=False)
    with ScriptedServer([Say("Hello")]) as server:
        assert reply_of(model_at(server.base_url)).text == "Hello"
    assert failure_of(model_at("http://llm.test/v1")).kind is ProviderErrorKind.CONNECTION


def test_invalid_environment_variable_is_named_and_its_value_is_not_quoted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("all_proxy", "https_proxy", "http_proxy"):
        monkeypatch.delenv(name, raising=False)
    for variable, value in (("ALL_PROXY", "socks5://u:hunter2@127.0.0.1:9"), ("HTTPS_PROXY", "http://u:hunter2@p:q")):
        with monkeypatch.context() as patch:
            patch.setenv(variable, value)
            message = refusal_of(models_with(), "m", "https://llm.test/v1")
            assert (f"check {variable}" in message, "hunter2" in message) == (True, False)
    for variable in ("OPENAI_ORG_ID", "OPENAI_CUSTOM_HEADERS"):
        with monkeypatch.context() as patch:
            patch.setenv(variable, "X-A: hunter2\N{BULLET}")
            assert "hunter2" not in failure_of(model_at("http://127.0.0.1:9/v1")).message


def test_failed_connection_is_reported_with_its_cause() -> None:
    with ScriptedServer(then=lambda _: Say("Hello")) as server:
        url = server.base_url
        assert "(the TLS handshake failed)" in failure_of(model_at(url.replace("http:", "https:"))).message
    assert "(the connection was refused)" in failure_of(model_at(url)).message


def test_model_is_shared_until_its_key_changes_or_it_is_closed() -> None:
    variables = {"OPENAI_API_KEY": "sk-1"}
    with ScriptedServer(then=lambda _: Say("Hello")) as server:
        variables["OPENAI_BASE_URL"] = server.base_url
        models = ChatModels(variables)
        for key in ("sk-1", "sk-2", "sk-1"):
            variables["OPENAI_API_KEY"] = key
            assert reply_of(connect(models, "m")).text == "Hello"
        first, second, other = connect(models, "m"), connect(models, "m"), connect(models, "n")
        assert first is second is not other
        assert models.without_request("m", None, PLAIN) is first
        assert isinstance(first.complete(CALL, print), ModelReply)
        ask(connect(models, "m", options=ModelOptions(model_kwargs={"default_query": {"v": "1"}})))
        models.close()
        assert models.without_request("m", None, PLAIN) is not first
        asyncio.run(models.aclose())
    keys = [headers["authorization"] for headers in server.headers[:4]]
    assert keys == [f"Bearer sk-{number}" for number in (1, 2, 1, 1)]
    assert server.paths[-1] == "/v1/chat/completions?v=1"


LIMIT_NAMES = [
    ("gpt-4o", "", "max_completion_tokens"),
    ("gpt-4o", "https://api.openai.com/v1", "max_completion_tokens"),
    ("gpt-4o", "http://llm.test/v1", "max_tokens"),
    *((name, "http://llm.test/v1", "max_completion_tokens") for name in ("gpt-5-mini", "openai/gpt5", "o3")),
    ("openai/o4-mini", "http://llm.test/v1", "max_completion_tokens"),
    *((name, "http://llm.test/v1", "max_tokens") for name in ("o1x", "qwen3-coder")),
]


def test_output_limit_has_the_parameter_name_of_its_endpoint() -> None:
    wrong = [row for row in LIMIT_NAMES if model_at(row[1], model=row[0]).learned.limit_name != row[2]]
    assert wrong == []


def test_served_model_is_used_if_no_model_is_named() -> None:
    with ScriptedServer([Say("Hello")]) as server:
        assert reply_of(connect(models_with(), None, server.base_url)).text == "Hello"
    assert server.requests[0]["model"] == "scripted"


def test_endpoint_without_exactly_one_model_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = [
        (httpx2.Response(200, json={"data": [{"id": "b"}, {"id": "a"}]}), "serves 2 models (a, b)"),
        (httpx2.Response(500, json={"error": {"message": "broken"}}), "failed (broken)"),
        (httpx2.Response(200, content=b"<html>"), "sent no chat completion"),
    ]
    make_chat, replies = endpoint_models.endpoint_chat, iter([answer for answer, _ in answers])

    def chat(endpoint: Endpoint, options: ModelOptions, **more: Any) -> Any:
        answer = next(replies)
        return make_chat(endpoint, options, **{**more, "transport": httpx2.MockTransport(lambda _: answer)})

    monkeypatch.setattr(endpoint_models, "endpoint_chat", chat)
    for _, words in answers:
        failure = models_with().connect(ModelChoice(model=None, base_url="http://llm.test/v1"))
        assert isinstance(failure, ProviderFailure)
        assert words in failure.message


def test_embedded_model_is_started_or_the_error_says_why_not(monkeypatch: pytest.MonkeyPatch) -> None:
    absent = ProviderFailure(kind=ProviderErrorKind.MODEL_UNAVAILABLE, message="Run `mendgraph model pull`.")
    answers: list[Any] = [absent]
    monkeypatch.setattr(local_model, "shared_local_server", lambda: answers[-1])
    models = models_with()
    assert models.connect(ModelChoice(model="local", base_url=None)) == absent
    with ScriptedServer([Status(500)]) as server:
        answers.append(SimpleNamespace(model="m", base_url=server.base_url))
        assert failure_of(connect(models, None)).message == "the embedded model failed (scripted status 500)."
