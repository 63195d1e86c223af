import hashlib
from pathlib import Path
from typing import Any

import pytest

from mendgraph.graph.doctor import model
from mendgraph.graph.doctor.examination import Status
from mendgraph.nodes.call_model.embedded.weights import WeightsSpec
from mendgraph.nodes.records import ProviderErrorKind, ProviderFailure
from tests.doubles.scripted_server import ScriptedServer

KEY = {"OPENAI_API_KEY": "k"}
CONTENT = b"weights"


@pytest.mark.parametrize(
    ("settings", "environment", "status", "said"),
    [
        ({}, {}, Status.OK, "the embedded local model: nothing else is set"),
        ({"model": "local"}, KEY, Status.OK, "the embedded local model: options or configuration name it"),
        ({}, {"OPENAI_BASE_URL": "http://127.0.0.1:1/v1"}, Status.OK, "with no key: OPENAI_BASE_URL set"),
        ({"model": "m"}, KEY, Status.OK, "m at https://api.openai.com/v1 with a key from OPENAI_API_KEY"),
        ({"base_url": "https://x.example/v1"}, {}, Status.WARNING, "with no key"),
        ({"model": "m"}, {**KEY, "OPENAI_BASE_URL": "http://x.example/v1"}, Status.WARNING, "a key from"),
        ({"model": "m"}, {}, Status.PROBLEM, "no model can be chosen"),
        ({}, KEY, Status.PROBLEM, "no model can be chosen"),
        ({"model": "anthropic:claude-sonnet-4-5"}, {}, Status.WARNING, "ChatAnthropic with no key"),
        ({"model": "perplexity:sonar"}, {}, Status.PROBLEM, "perplexity:sonar cannot be used"),
    ],
)
def test_what_a_run_would_use_and_why(
    settings: dict[str, Any], environment: dict[str, str], status: Status, said: str
) -> None:
    found = model.choice(settings, environment)
    assert (found.status, said in found.found) == (status, True)
    assert bool(found.remedy) == (status is not Status.OK)


def test_a_provider_is_judged_with_the_settings_of_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AZURE_OPENAI_API_KEY", "a-key-of-nobody")
    monkeypatch.setenv("AZURE_OPENAI_ENDPOINT", "https://x.example")
    monkeypatch.delenv("OPENAI_API_VERSION", raising=False)
    azure = {"model": "azure_openai:gpt-5"}
    asked = model.choice({**azure, "model_kwargs": {"api_version": "2025-04-01-preview"}}, {})
    assert (asked.status, "AzureChatOpenAI" in asked.found) == (Status.OK, True)
    assert model.choice(azure, {}).status is Status.PROBLEM
    thinks = model.choice({"model": "ollama:qwen3:8b", "reasoning_effort": "low"}, {})
    assert (thinks.status, thinks.remedy.split(":")[0]) == (Status.PROBLEM, "ChatOllama has no reasoning_effort")


def test_an_endpoint_is_asked_with_the_settings_of_the_run() -> None:
    with ScriptedServer() as server:
        found = model.answer({"base_url": server.base_url, "model_kwargs": {"top_logprobs": "many"}}, {})
    assert (found.status, "top_logprobs" in found.found) == (Status.PROBLEM, True)
    assert found.remedy == "correct the setting that this names"


def test_an_endpoint_is_asked_what_it_serves() -> None:
    with ScriptedServer() as server:
        url = {"base_url": server.base_url}
        listed = model.answer(url, {})
        other = model.answer({**url, "model": "other"}, {})
    assert (listed.status, listed.found) == (Status.OK, "it answers, and serves scripted")
    assert (other.status, "does not list other" in other.found, other.remedy[-8:]) == (Status.WARNING, True, "scripted")


def test_an_endpoint_that_is_not_there_is_a_problem() -> None:
    found = model.answer({"base_url": "http://127.0.0.1:9/v1", "model": "m"}, KEY)
    assert (found.status, "cannot be reached" in found.found) == (Status.PROBLEM, True)
    assert "--model local" in found.remedy


@pytest.mark.parametrize(("settings", "environment"), [({"model": "local"}, {}), ({"model": "m"}, {})])
def test_nobody_is_asked_where_there_is_no_endpoint(settings: dict[str, Any], environment: dict[str, str]) -> None:
    assert model.answer(settings, environment).status is Status.OFF


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    spec = WeightsSpec("w.gguf", "w", len(CONTENT), hashlib.sha256(CONTENT).hexdigest(), "", ())
    place = tmp_path / "w.gguf"
    monkeypatch.setattr(model, "embedded_weights", lambda: spec)
    monkeypatch.setattr(model, "weights_path", lambda: str(place))
    monkeypatch.setattr(model, "_has_server", lambda: True)
    monkeypatch.setattr(model, "_free_memory", lambda: 10**12)
    return place


def test_weights_that_are_not_there_are_a_problem_only_where_they_are_wanted(path: Path) -> None:
    wanted, other = (model.weights(each, KEY, deep=False) for each in ({"model": "local"}, {"model": "m"}))
    assert [wanted.status, other.status] == [Status.PROBLEM, Status.OFF]
    assert "model pull" in wanted.remedy
    assert str(path) in wanted.found


@pytest.mark.parametrize(
    ("content", "deep", "status", "said"),
    [
        (CONTENT, False, Status.OK, "size is right"),
        (CONTENT, True, Status.OK, "SHA-256 is right"),
        (b"WEIGHTS", False, Status.OK, "size is right"),
        (b"WEIGHTS", True, Status.PROBLEM, "damaged"),
        (b"we", False, Status.PROBLEM, "2 of 7 bytes"),
    ],
)
def test_weights_are_looked_at_as_closely_as_is_asked(
    path: Path, content: bytes, deep: bool, status: Status, said: str
) -> None:
    path.write_bytes(content)
    found = model.weights({}, {}, deep=deep)
    assert (found.status, said in found.found) == (status, True)
    assert sorted(each.name for each in path.parent.iterdir()) == ["w.gguf"]


def test_weights_without_a_server_or_memory_are_told(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path.write_bytes(CONTENT)
    monkeypatch.setattr(model, "_free_memory", lambda: 1_000_000_000)
    assert model.weights({}, {}, deep=False).status is Status.WARNING
    monkeypatch.setattr(model, "_has_server", lambda: False)
    assert "xllamacpp" in model.weights({}, {}, deep=False).found


def test_what_an_endpoint_refuses_has_its_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[Any] = [
        ProviderFailure(kind=ProviderErrorKind.AUTHENTICATION, message="no"),
        ProviderFailure(kind=ProviderErrorKind.MODEL_UNAVAILABLE, message="no list"),
        ["a", "b"],
    ]
    monkeypatch.setattr(model, "_served", lambda *_: said.pop(0))
    refused, listless, several = (model.answer({"base_url": "http://127.0.0.1:9/v1"}, KEY) for _ in range(3))
    assert (refused.status, refused.remedy) == (Status.PROBLEM, "set OPENAI_API_KEY to a key that it takes")
    assert (listless.status, "lists no models" in listless.found) == (Status.WARNING, True)
    assert (several.status, several.remedy) == (Status.PROBLEM, "choose one with --model")


def test_an_environment_that_no_client_can_use_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "nonsense://h.example")
    found = model.answer({"base_url": "https://h.example/v1", "model": "m"}, KEY)
    assert (found.status, "HTTPS_PROXY" in found.found) == (Status.PROBLEM, True)
