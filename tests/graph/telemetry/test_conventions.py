import pytest

from graph.telemetry.conventions import CAPTURE_VARIABLE, captures_messages, provider_of, server_of
from nodes.call_model.endpoint import Endpoint


@pytest.mark.parametrize(
    ("url", "provider"),
    [
        ("", "openai"),
        ("https://api.openai.com/v1", "openai"),
        ("https://mine.openai.azure.com/openai/v1", "azure.ai.openai"),
        ("https://API.DeepSeek.com", "deepseek"),
        ("https://notapi.deepseek.com.example/v1", "openai"),
        ("http://127.0.0.1:8080/v1", "openai"),
    ],
)
def test_the_provider_is_named_after_its_host(url: str, provider: str) -> None:
    assert provider_of(Endpoint(model="m", base_url=url)) == provider


def test_models_without_an_endpoint_have_a_name_and_no_server() -> None:
    embedded = Endpoint(model="local", embedded=True)
    assert [provider_of(each) for each in (embedded, None)] == ["llama.cpp", "custom"]
    assert [server_of(each) for each in (embedded, None)] == [{}, {}]


@pytest.mark.parametrize(
    ("url", "server"),
    [
        ("", {"server.address": "api.openai.com", "server.port": 443}),
        ("http://localhost/v1", {"server.address": "localhost", "server.port": 80}),
        ("http://localhost:81/v1", {"server.address": "localhost", "server.port": 81}),
    ],
)
def test_the_server_is_told_with_its_port(url: str, server: dict[str, object]) -> None:
    assert server_of(Endpoint(model="m", base_url=url)) == server


@pytest.mark.parametrize(
    ("value", "wanted"), [("", False), ("false", False), ("True", True), ("SPAN_ONLY", True), ("EVENT_ONLY", False)]
)
def test_messages_are_told_only_where_the_user_says_so(value: str, wanted: bool) -> None:
    assert captures_messages({CAPTURE_VARIABLE: value}) is wanted
    assert captures_messages({}) is False
