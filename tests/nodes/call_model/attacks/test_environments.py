"""What the machine around a model can spoil: its proxies, its headers, its certificates, the way to an endpoint."""

import asyncio

import pytest

from nodes.call_model.client import Connections, OpenAIModel
from nodes.call_model.endpoint import Endpoint
from nodes.call_model.model import Call
from nodes.call_model.prompt import Prompt
from nodes.records import ModelReply, ProviderErrorKind, ProviderFailure
from tests.doubles.scripted_server import Say, ScriptedServer

CALL = Call(prompt=Prompt(messages=({"role": "user", "content": "Hi"},)), max_output_tokens=9, timeout_s=5.0)


async def aask(model: OpenAIModel) -> ModelReply | ProviderFailure:
    try:
        return await model.acomplete(CALL, print)
    finally:
        await model.aclose()


@pytest.mark.parametrize(
    ("variable", "value", "told"),
    [
        ("ALL_PROXY", "socks5://u:hunter2@127.0.0.1:9", "names a SOCKS proxy"),
        ("HTTPS_PROXY", "http://u:hunter2@proxy:port", "holds no address of a proxy"),
        ("OPENAI_ORG_ID", "hunter2ö", "cannot be sent as a header"),
        ("OPENAI_CUSTOM_HEADERS", "X-A: hunter2ö", "cannot be sent as a header"),
    ],
)
def test_what_the_environment_says_may_be_of_no_use(
    variable: str, value: str, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("all_proxy", "https_proxy", "http_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(variable, value)
    found = Connections(dict).connect("m", "https://llm.test/v1")
    assert isinstance(found, ProviderFailure)
    assert found.kind is ProviderErrorKind.MODEL_UNAVAILABLE
    assert found.message.startswith(f"{variable} {told}")
    assert "hunter2" not in found.message


def test_an_environment_that_is_spoilt_later_is_a_failure_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    model = OpenAIModel(Endpoint(model="m", base_url="http://llm.test/v1"))
    monkeypatch.setenv("ALL_PROXY", "socks5://127.0.0.1:9")
    result = asyncio.run(aask(model))
    message = "ALL_PROXY names a SOCKS proxy, for which the package `socksio` is not installed."
    assert result == ProviderFailure(kind=ProviderErrorKind.MODEL_UNAVAILABLE, message=message, sent=False)


@pytest.mark.parametrize("asynchronous", [False, True])
def test_why_an_endpoint_is_not_reached(asynchronous: bool) -> None:
    with ScriptedServer(then=lambda _: Say("Hello")) as server:
        plain_url = server.base_url
        secure = OpenAIModel(Endpoint(model="m", base_url=plain_url.replace("http:", "https:")))
        results = [asyncio.run(aask(secure)) if asynchronous else secure.complete(CALL, print)]
    gone = OpenAIModel(Endpoint(model="m", base_url=plain_url))
    results.append(asyncio.run(aask(gone)) if asynchronous else gone.complete(CALL, print))
    for model in (secure, gone):
        model.close()
    causes = [
        result.message.partition("(")[2].partition(")")[0] for result in results if not isinstance(result, ModelReply)
    ]
    assert causes == ["the TLS handshake failed", "the connection is refused"]
