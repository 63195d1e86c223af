"""Which model a run would use, why, and whether it answers. The key is never shown."""

import os
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from mendgraph.graph.configuration.context import AgentContext
from mendgraph.graph.doctor.examination import Finding, Status, fine, off, problem, warning
from mendgraph.nodes.call_model.embedded.weights import WeightsSpec, embedded_weights, file_sha256, weights_path
from mendgraph.nodes.call_model.endpoint import LOOPBACK_HOSTS, NO_KEY, USUAL_URL, Endpoint, ModelOptions, find_endpoint
from mendgraph.nodes.records import ProviderErrorKind, ProviderFailure

ENOUGH_BYTES = 3_000_000_000
"""Of memory, for the embedded model and its context. Source: measured, 2.1 GB resident at the full window."""

_MOST_NAMED = 5


def choice(settings: Mapping[str, Any], environment: Mapping[str, str]) -> Finding:
    """Which endpoint a run would use, and what decided that."""
    found = _endpoint(settings, environment)
    if isinstance(found, ProviderFailure):
        return problem("no model can be chosen", found.message)
    why = _why(settings, environment)
    if found.embedded:
        return fine(f"the embedded local model: {why}")
    if found.provider:
        return _of_a_provider(found, _options(settings), why)
    url = found.base_url or USUAL_URL
    key = f"a key from {found.key_variable}" if found.api_key.get_secret_value() != NO_KEY else "no key"
    said = f"{found.model or 'the one model that it serves'} at {url} with {key}: {why}"
    parts = urlsplit(url)
    if parts.scheme == "http" and parts.hostname not in LOOPBACK_HOSTS and key != "no key":
        return warning(said, "use https: the key and your files go over the network in clear text")
    if key == "no key" and parts.hostname not in LOOPBACK_HOSTS:
        return warning(said, f"if it wants a key, set {found.key_variable}")
    return fine(said)


def answer(settings: Mapping[str, Any], environment: Mapping[str, str]) -> Finding:
    """Whether the endpoint answers, and serves the model: one `GET /models`, which costs nothing."""
    found = _endpoint(settings, environment)
    if isinstance(found, ProviderFailure):
        return off("not asked: no model can be chosen")
    if found.embedded:
        return off("not needed for the embedded model")
    if found.provider:
        return off(f"not asked: {found.provider}'s package knows where it is")
    served = _served(found, _options(settings))
    if isinstance(served, ProviderFailure):
        if served.kind is ProviderErrorKind.MODEL_UNAVAILABLE:  # the list is not there, and not the model
            return warning(f"it answers, but lists no models ({served.message})", "")
        return problem(served.message, _remedy(served, found))
    named = ", ".join(sorted(served)[:_MOST_NAMED]) + (", ..." if len(served) > _MOST_NAMED else "")
    if not found.model and len(served) != 1:
        return problem(f"it serves {len(served)} models ({named})", "choose one with --model")
    if found.model and found.model not in served:
        remedy = f"choose one of these with --model: {named or 'there is none'}"
        return warning(f"it answers, but does not list {found.model}", remedy)
    return fine(f"it answers, and serves {found.model or served[0]}")


def weights(settings: Mapping[str, Any], environment: Mapping[str, str], *, deep: bool) -> Finding:
    """Whether the embedded model is in place; `deep` compares the SHA-256 of all of it."""
    found = _endpoint(settings, environment)
    wanted = isinstance(found, Endpoint) and found.embedded
    bad = Status.PROBLEM if wanted else Status.OFF
    spec, path = embedded_weights(), weights_path()
    try:
        size = os.stat(path).st_size
    except OSError:
        return Finding("", bad, f"not there ({path})", "`mendgraph model pull` fetches it (1.1 GB)")
    problem = _damage(path, size, spec, deep=deep)
    if problem:
        return Finding("", bad, f"{problem} ({path})", "`mendgraph model pull` fetches it again")
    if not _has_server():
        remedy = 'run `uv sync --extra local` or `pip install "mendgraph[local]"`'
        return Finding("", bad, "the weights are there, but xllamacpp cannot be imported", remedy)
    free = _free_memory()
    if wanted and free is not None and free < ENOUGH_BYTES:
        found_bytes = f"{free / 1e9:.1f} GB of memory are free, and it wants about {ENOUGH_BYTES / 1e9:.0f}"
        return warning(found_bytes, "end other programs, or use an endpoint")
    vouched = "SHA-256 is right" if deep else "verified" if os.path.exists(f"{path}.verified") else "size is right"
    return fine(f"{size / 1e9:.1f} GB, {vouched} ({path})")


def _endpoint(settings: Mapping[str, Any], environment: Mapping[str, str]) -> Endpoint | ProviderFailure:
    return find_endpoint(settings.get("model"), settings.get("base_url"), environment)


def _options(settings: Mapping[str, Any]) -> ModelOptions:
    return AgentContext.model_construct(**settings).model_options()


def _why(settings: Mapping[str, Any], environment: Mapping[str, str]) -> str:
    if settings.get("base_url") or settings.get("model"):
        return "options or configuration name it"
    set_here = [name for name in ("OPENAI_BASE_URL", "OPENAI_API_KEY") if environment.get(name, "").strip()]
    return f"{' and '.join(set_here)} set" if set_here else "nothing else is set"


def _of_a_provider(found: Endpoint, options: ModelOptions, why: str) -> Finding:
    """Whether the provider's package is there and can be set up as the run does it, its key included."""
    from mendgraph.graph.langchain.chat_models import provider_model

    made = provider_model(found, options)
    if isinstance(made, ProviderFailure):
        return problem(f"{found.full_name} cannot be used", made.message)
    variable = made.provider.key_variable
    if variable and not any(made.provider.keys):
        said = f"{made.provider.name} with no key: {why}"
        return warning(said, f"if it wants a key, set {variable}")
    return fine(f"{made.provider.name}: {why}")


def _served(endpoint: Endpoint, options: ModelOptions) -> list[str] | ProviderFailure:
    from mendgraph.graph.langchain.chat_models import endpoint_model, served_models

    model = endpoint_model(endpoint, options)
    if isinstance(model, ProviderFailure):
        # Not the word for a model that is not there: that one means that the list is missing.
        return model.model_copy(update={"kind": ProviderErrorKind.BAD_REQUEST})
    return served_models(model)


def _remedy(failure: ProviderFailure, endpoint: Endpoint) -> str:
    if failure.kind is ProviderErrorKind.AUTHENTICATION:
        return f"set {endpoint.key_variable} to a key that it takes"
    if not failure.sent:  # nobody was asked
        return "correct the setting that this names"
    return "start it, or correct OPENAI_BASE_URL or --base-url; `--model local` needs no endpoint"


def _damage(path: str, size: int, spec: WeightsSpec, *, deep: bool) -> str:
    if size != spec.size_bytes:
        return f"{size:,} of {spec.size_bytes:,} bytes"
    if deep and file_sha256(path, size, lambda *_: None) != spec.sha256:
        return "damaged: its SHA-256 is another one"
    return ""


def _has_server() -> bool:
    try:
        import xllamacpp
    except Exception:  # noqa: BLE001 - a wheel for another processor fails in its own way
        return False
    return xllamacpp is not None


def _free_memory() -> int | None:
    """Bytes that programs can have, None where nobody tells."""
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            line = next(line for line in file if line.startswith("MemAvailable:"))
    except (OSError, StopIteration):
        return None
    return int(line.split()[1]) * 1_024
