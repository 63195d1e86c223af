"""What a cassette's settings make of a run."""

from typing import Any

import pytest
from pydantic import SecretStr

from mendgraph.graph.cassettes import source
from mendgraph.graph.cassettes.source import Source, context_on, find_source, pinned_problem, version
from mendgraph.nodes.call_model.embedded.local_model import CONTEXT_TOKENS
from mendgraph.nodes.call_model.endpoint import NO_KEY
from mendgraph.nodes.records import ProviderErrorKind, ProviderFailure
from tests.doubles.scripted_server import ScriptedServer, nobody_listening

NATIVE = {"protocol": "native", "edit_form": "replace", "mendgraph": version()}


class Served:
    base_url, model = "http://127.0.0.1:5/v1", "qwen2.5-coder-1.5b"


def test_the_marker_goes_before_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", "http://b/v1")
    monkeypatch.setenv("OPENAI_API_KEY", "a-key")
    assert find_source({"base_url": "https://user.example:8/api/v1/", "model": "m", "edit_form": "patch"}) == Source(
        base_url="https://user.example:8/api/v1",
        api_key=SecretStr("a-key"),
        origin="model at user.example",
        settings={"model": "m", **NATIVE, "edit_form": "patch"},
    )


def test_the_environment_names_the_usual_provider(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "a-key")
    found = find_source({"model": "gpt-4o"})
    assert isinstance(found, Source)
    assert (found.base_url, found.origin) == ("https://api.openai.com/v1", "model at api.openai.com")
    assert "a-key" not in repr(found)


@pytest.mark.parametrize("model", ["anthropic:claude-sonnet-4-6", "deepseek:deepseek-chat"])
def test_a_provider_is_no_endpoint(monkeypatch: pytest.MonkeyPatch, model: str) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "a-key")
    assert find_source({"model": model}) == (
        f"{model!r} names a provider, whose package knows its host by itself, and no endpoint: give the chat model"
        " itself to the run in the test, as in run_task(..., model=ChatAnthropic(...))"
    )


def test_an_endpoint_with_one_model_is_asked_for_its_name() -> None:
    with ScriptedServer() as server:
        found = find_source({"base_url": server.base_url})
        assert found == Source(
            base_url=server.base_url,
            api_key=SecretStr(NO_KEY),
            origin="model at 127.0.0.1",
            settings={"model": "scripted", **NATIVE},
        )


@pytest.mark.parametrize("wanted", [{}, {"model": "local"}])
def test_without_an_endpoint_the_embedded_model_is_started(
    monkeypatch: pytest.MonkeyPatch, wanted: dict[str, str]
) -> None:
    monkeypatch.setattr(source, "shared_local_server", Served)
    pinned = {"protocol": "text", "edit_form": "blocks", "window_tokens": str(CONTEXT_TOKENS)}
    assert find_source(wanted) == Source(
        base_url=Served.base_url,
        api_key=SecretStr(NO_KEY),
        origin="local model",
        settings={"model": Served.model, **pinned, "mendgraph": version()},
    )


def test_what_is_missing_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    failure = ProviderFailure(kind=ProviderErrorKind.MODEL_UNAVAILABLE, message="no weights")
    monkeypatch.setattr(source, "shared_local_server", lambda: failure)
    wanted: list[dict[str, Any]] = [{}, {"model": "m"}, {"protocol": "morse"}, {"base_url": "http://u:p@h/v1"}]
    with nobody_listening() as url:
        told = [find_source(each) for each in [*wanted, {"base_url": url}]]
    unset = (
        "Model 'm' needs an endpoint: set OPENAI_API_KEY, or OPENAI_BASE_URL for a server of your own, or omit the "
        "model to use the embedded one."
    )
    assert told[:4] == [
        "no weights",
        unset,
        "protocol: Input should be 'text', 'native' or 'auto'",
        "base_url: Value error, base_url may hold no user name or password: put the key into OPENAI_API_KEY",
    ]
    assert str(told[4]).startswith(f"{url} cannot be reached")


SETTINGS = {"model": "m", "protocol": "text", "edit_form": "patch", "window_tokens": "8192", "mendgraph": "0"}


def test_what_is_pinned_goes_before_what_is_usual_and_after_what_is_given() -> None:
    context = context_on(SETTINGS, {}, "/w", "http://u/v1")
    assert (context.model, context.protocol, context.edit_form, context.window_tokens) == ("m", "text", "patch", 8192)
    assert (context.workspace, context.base_url, context.evidence) == ("/w", "http://u/v1", False)
    other = context_on(SETTINGS, {"model": "n", "evidence": True, "base_url": "http://v"}, "/w", "http://u/v1")
    assert (other.model, other.evidence, other.base_url, other.protocol) == ("n", True, "http://v", "text")


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        (SETTINGS, ""),
        ({"mendgraph": "any"}, ""),
        ({"protocol": "foo"}, "settings.protocol that no run can have (Input should be 'text', 'native' or 'auto')"),
        ({"edit_form": ""}, "settings.edit_form that no run can have (Input should be 'replace', 'blocks', "),
        ({"window_tokens": "wide"}, "settings.window_tokens that no run can have (Input should be a valid integer"),
    ],
)
def test_settings_that_no_run_can_have_are_named(settings: dict[str, str], problem: str) -> None:
    found = pinned_problem(settings)
    assert found.startswith(problem)
    assert bool(found) == bool(problem)
