"""What the machine around a model can spoil: its proxies, its headers, its certificates, the way to an endpoint."""

import pytest

from mendgraph.graph.langchain.chat_models import ChatModels
from mendgraph.nodes.call_model.endpoint import ModelChoice
from mendgraph.nodes.records import ProviderErrorKind, ProviderFailure
from tests.doubles.scripted_server import Say, ScriptedServer
from tests.graph.langchain.asked_models import ask, at


@pytest.mark.parametrize(
    ("variable", "value"),
    [("ALL_PROXY", "socks5://u:hunter2@127.0.0.1:9"), ("HTTPS_PROXY", "http://u:hunter2@proxy:port")],
)
def test_what_the_environment_says_may_be_of_no_use(variable: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("all_proxy", "https_proxy", "http_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(variable, value)
    found = ChatModels(dict).connect(ModelChoice(model="m", base_url="https://llm.test/v1"))
    assert isinstance(found, ProviderFailure)
    assert found.kind is ProviderErrorKind.MODEL_UNAVAILABLE
    assert f"look at {variable}" in found.message
    assert "hunter2" not in found.message


def test_why_an_endpoint_is_not_reached() -> None:
    with ScriptedServer(then=lambda _: Say("Hello")) as server:
        plain_url = server.base_url
        results = [ask(at(plain_url.replace("http:", "https:")))[0]]
    results.append(ask(at(plain_url))[0])
    causes = [
        result.message.partition("(")[2].partition(")")[0] for result in results if isinstance(result, ProviderFailure)
    ]
    assert causes == ["the TLS handshake failed", "the connection is refused"]


@pytest.mark.parametrize("variable", ["OPENAI_ORG_ID", "OPENAI_CUSTOM_HEADERS"])
def test_header_that_cannot_be_sent_is_a_failure_that_quotes_nothing(
    variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, "X-A: hunter2\N{BULLET}")
    result, _ = ask(at("http://127.0.0.1:9/v1"))
    assert isinstance(result, ProviderFailure)
    assert "hunter2" not in result.message
