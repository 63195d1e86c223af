"""What a cassette is recorded from: the endpoint that mendgraph would choose, and all that its requests depend on."""

import os
from collections.abc import Mapping
from importlib import metadata
from typing import Final
from urllib.parse import urlsplit

from pydantic import SecretStr, ValidationError

from mendgraph.graph.configuration.context import AgentContext
from mendgraph.graph.langchain.chat_models import endpoint_model, served_models
from mendgraph.nodes.call_model.embedded.local_model import CONTEXT_TOKENS, shared_local_server
from mendgraph.nodes.call_model.endpoint import (
    NO_KEY,
    PLAIN,
    USUAL_URL,
    Endpoint,
    choose_served_model,
    find_endpoint,
    split_provider,
)
from mendgraph.nodes.records import JsonMap, ProviderFailure, Record

ARGUMENTS: Final = frozenset({"base_url", "model", "protocol", "edit_form"})
"""What a marker may say of the source, with the names and meanings of `AgentContext`."""


class Source(Record):
    """An endpoint to record from. `origin` is for the cassette's first line; it names no port and no path."""

    base_url: str
    api_key: SecretStr
    origin: str
    settings: dict[str, str]


def find_source(wanted: Mapping[str, str]) -> Source | str:
    """The endpoint that `wanted` (some of `ARGUMENTS`) and the environment lead to, or in words why there is none.

    Order: as `AgentContext` has it; without any setting the embedded model is started.
    """
    try:
        context = AgentContext.model_validate(dict(wanted))
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
    if problem := provider_problem(context.model):
        return problem
    endpoint = find_endpoint(context.model, context.base_url, os.environ)
    if isinstance(endpoint, ProviderFailure):
        return endpoint.message
    if endpoint.embedded:
        return _embedded(context)
    model = endpoint.model or _served_model(endpoint)
    if isinstance(model, ProviderFailure):
        return model.message
    url = endpoint.base_url or USUAL_URL
    return Source(
        base_url=url.rstrip("/"),
        api_key=endpoint.api_key,
        origin=f"model at {urlsplit(url).hostname}",
        settings=settings_of(context, model, embedded=False),
    )


def provider_problem(model: str | None) -> str:
    """Why no endpoint of a cassette has a model of this name; "" where one may have it."""
    provider, _ = split_provider(model or "")
    if provider in {"", "openai"}:
        return ""
    remedy = "give the chat model itself to the run in the test, as in run_task(..., model=ChatAnthropic(...))"
    return f"{model!r} names a provider, whose package knows its host by itself, and no endpoint: {remedy}"


def version() -> str:
    """The version of mendgraph that is running; "" where it is not installed."""
    try:
        return metadata.version("mendgraph")
    except metadata.PackageNotFoundError:
        return ""


def _embedded(context: AgentContext) -> Source | str:
    server = shared_local_server()
    if isinstance(server, ProviderFailure):
        return server.message
    # Its server has a smaller window than the model's family: a replay could not know.
    settings = settings_of(context, server.model, embedded=True, window_tokens=str(CONTEXT_TOKENS))
    return Source(
        base_url=server.base_url,
        api_key=SecretStr(NO_KEY),
        origin="local model",
        settings=settings,
    )


def _served_model(endpoint: Endpoint) -> str | ProviderFailure:
    """The one model that the endpoint serves: it is asked before the recording begins."""
    model = endpoint_model(endpoint, PLAIN)
    served = model if isinstance(model, ProviderFailure) else served_models(model)
    return served if isinstance(served, ProviderFailure) else choose_served_model(served)


def settings_of(context: AgentContext, model: str, *, embedded: bool, **more: str) -> dict[str, str]:
    """What a cassette of this run says of itself; see `mendgraph.graph.cassettes.pinned`."""
    profile = context.profile(embedded, model)
    pinned = {"protocol": profile.protocol.value, "edit_form": profile.edit_form.value}
    return {"model": model, **pinned, **more, "mendgraph": version()}


REPLAYED: Final = ("model", "protocol", "edit_form", "window_tokens")
"""The settings of a cassette that are settings of `AgentContext`, with the same meaning."""


def context_on(settings: Mapping[str, str], given: JsonMap, workspace: str, base_url: str) -> AgentContext:
    """The context of a run on a cassette with these settings; what is `given` goes before them.

    Evidence is off unless it is asked for: it needs bubblewrap, so what the model is told of it would differ from
    machine to machine.

    Raises:
        ValidationError: what is given is no context.
    """
    known: JsonMap = {"base_url": base_url, "evidence": False, **_pinned(settings), **given}
    return AgentContext.model_validate({**known, "workspace": workspace})


def pinned_problem(settings: Mapping[str, str]) -> str:
    """Which of a cassette's settings no run can have, and why; "" where all are good."""
    try:
        AgentContext.model_validate(_pinned(settings))
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        return f"settings.{first['loc'][0]} that no run can have ({first['msg']})"
    return ""


def _pinned(settings: Mapping[str, str]) -> JsonMap:
    return {name: settings[name] for name in REPLAYED if name in settings}
