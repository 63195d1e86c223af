"""The choice of model and endpoint: the context first, then the environment, then the embedded model.

`OPENAI_API_KEY` is only sent to the run's own endpoint; another host gets the key that was set for it
(`key_variable_of`).
"""

import re
from collections.abc import Mapping, Sequence
from typing import Final
from urllib.parse import urlsplit

from pydantic import Field, SecretStr

from mendgraph.nodes.records import JsonMap, ProviderErrorKind, ProviderFailure, Record

EMBEDDED_MODEL = "local"  # the name of the embedded model
EMBEDDED_WINDOW: Final = 8192  # the tokens of its window
NO_KEY = "not-needed"  # for endpoints without a key, as the client requires one
LOOPBACK_HOSTS: Final = frozenset({"127.0.0.1", "localhost", "::1"})
USUAL_KEY: Final = "OPENAI_API_KEY"
USUAL_URL: Final = "https://api.openai.com/v1"
KEY_PREFIX: Final = "MENDGRAPH_API_KEY_"


MODEL_VARIABLE: Final = "MENDGRAPH_MODEL"

DEFAULT_MODELS: Final[Mapping[str, str]] = {
    "OPENAI_API_KEY": "gpt-5-mini",
    "ANTHROPIC_API_KEY": "anthropic:claude-sonnet-4-6",
    "GEMINI_API_KEY": "google_genai:gemini-2.5-flash",
    "GOOGLE_API_KEY": "google_genai:gemini-2.5-flash",
    "MISTRAL_API_KEY": "mistralai:devstral-2512",
    "DEEPSEEK_API_KEY": "deepseek:deepseek-chat",
}
"""The default model by the variable with a provider's key; the first variable that is set counts.

Each model is in the price list.
"""

PROVIDERS: Final = frozenset(
    {"anthropic", "anthropic_bedrock", "azure_ai", "azure_openai", "baseten", "bedrock", "bedrock_converse"}
    | {"bedrock_mantle_anthropic", "bedrock_mantle_openai", "cohere", "deepseek", "fireworks"}
    | {"google_anthropic_vertex", "google_genai", "google_vertexai", "groq", "huggingface", "ibm", "langsmith"}
    | {"litellm", "meta", "mistralai", "nvidia", "ollama", "openai", "openrouter", "perplexity", "together"}
    | {"upstage", "xai"}
)
"""The providers before a model's name, as in "anthropic:claude-sonnet-4-6".

Source: langchain.chat_models.init_chat_model, which is not imported; a test compares the two.
"""


class Endpoint(Record):
    """The address and model of calls.

    `base_url` is "" for the provider's default, `model` is "" if the endpoint names it. `provider` is one of
    `PROVIDERS`, or "" for an OpenAI-compatible endpoint. `key_variable` is the environment variable of `api_key`.
    """

    model: str
    base_url: str = ""
    api_key: SecretStr = SecretStr(NO_KEY)
    embedded: bool = False
    key_variable: str = USUAL_KEY
    provider: str = ""

    @property
    def full_name(self) -> str:
        """The name of the model after its provider, if it has one."""
        if self.provider:
            return f"{self.provider}:{self.model}"
        return self.model


def find_endpoint(
    model: str | None, base_url: str | None, environment: Mapping[str, str], *, key_variable: str = ""
) -> Endpoint | ProviderFailure:
    """Return the endpoint, or a failure that names the missing setting.

    Order: `model`, `MENDGRAPH_MODEL`, the only model of a named endpoint, the default model of the provider whose key
    is set (`DEFAULT_MODELS`), the embedded model. `key_variable` names the variable with the key of an endpoint that is
    not the run's own; without it, `OPENAI_API_KEY` is used only for the origin of `OPENAI_BASE_URL`.
    """
    model = model or named_model(base_url, environment)
    provider, name = split_provider(model or "")
    if base_url and not is_address(base_url.strip()):
        return _no_address(base_url.strip())
    if provider not in {"", "openai"}:
        return Endpoint(model=name, base_url=(base_url or "").strip(), key_variable="", provider=provider)

    model = name or None
    usual_url = environment.get("OPENAI_BASE_URL", "").strip()
    url = (base_url or usual_url).strip()
    variable = key_variable or USUAL_KEY

    if not environment.get(variable, "").strip() and same_origin(url, usual_url or USUAL_URL):
        variable = USUAL_KEY

    key = environment.get(variable, "").strip()
    if model == EMBEDDED_MODEL or not (model or url or key):
        return Endpoint(model=EMBEDDED_MODEL, embedded=True)
    if url and not is_address(url):
        return _no_address(url)

    if not _is_sendable(key):
        message = f"{variable} contains a character that no key has: set it again, without spaces or line breaks."
        return ProviderFailure(kind=ProviderErrorKind.AUTHENTICATION, message=message)

    if not key and not url:
        message = (
            f"Model {model!r} needs an endpoint: set OPENAI_API_KEY, or OPENAI_BASE_URL for your own server, or omit"
            " the model to use the embedded one. For another provider, write anthropic:MODEL."
        )

        return ProviderFailure(kind=ProviderErrorKind.MODEL_UNAVAILABLE, message=message)

    return Endpoint(model=model or "", base_url=url, api_key=SecretStr(key or NO_KEY), key_variable=variable)


def named_model(base_url: str | None, environment: Mapping[str, str]) -> str | None:
    """Return the model that the environment names, or None for the endpoint's own or the embedded model."""
    variable = deciding_variable(base_url, environment)
    if variable == MODEL_VARIABLE:
        return environment[variable].strip()

    return DEFAULT_MODELS.get(variable)


def deciding_variable(base_url: str | None, environment: Mapping[str, str]) -> str:
    """Return the environment variable that decides on the model of a run that names none, or ""."""
    if environment.get(MODEL_VARIABLE, "").strip():
        return MODEL_VARIABLE
    if base_url or environment.get("OPENAI_BASE_URL", "").strip():
        return ""

    return next((key for key in DEFAULT_MODELS if environment.get(key, "").strip()), "")


def _no_address(url: str) -> ProviderFailure:
    message = f"The endpoint {url!r} is not an address: it should look like http://127.0.0.1:8080/v1."
    return ProviderFailure(kind=ProviderErrorKind.MODEL_UNAVAILABLE, message=message)


def split_provider(model: str) -> tuple[str, str]:
    """Return the provider before a model's name, or "", and the name."""
    provider, colon, name = model.partition(":")
    if colon and name and provider in PROVIDERS:
        return (provider, name)

    return ("", model)


def address_for(model: str, before: str | None, base_url: str | None) -> str | None:
    """Return the address for a model that replaces the one before: None if it is another provider's."""
    providers = [split_provider(name)[0].removeprefix("openai") for name in (model, before or "")]
    return base_url if providers[0] == providers[1] else None


def key_variable_of(base_url: str) -> str:
    """Return the variable with the key of a host that is not the run's own, or "" for an invalid address.

    It is `MENDGRAPH_API_KEY_` and the host's name in upper case, with `_` for a dot and `__` for a hyphen:
    `https://openrouter.ai/api/v1` has `MENDGRAPH_API_KEY_OPENROUTER_AI`.
    """
    host = ""
    if is_address(base_url):
        host = urlsplit(base_url).hostname or ""

    if host:
        return KEY_PREFIX + re.sub(r"[^A-Z0-9_]", "_", host.upper().replace("-", "__"))

    return ""


def same_origin(one: str, other: str) -> bool:
    """Return whether two valid addresses have the same scheme, host and port."""
    return is_address(one) and is_address(other) and _origin(one) == _origin(other)


def is_address(url: str) -> bool:
    """Return whether this is a valid HTTP address."""
    try:
        parts = urlsplit(url)
        has_port = parts.port is None or parts.port > 0
    except ValueError:
        return False

    return parts.scheme in ("http", "https") and bool(parts.hostname) and has_port and _is_sendable(url)


def has_path(url: str) -> bool:
    """Return whether an address has a path; "" is the provider's own."""
    return not url or bool(urlsplit(url).path.strip("/"))


def _origin(url: str) -> tuple[str, str, int]:
    parts = urlsplit(url)
    return parts.scheme, parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)


def _is_sendable(text: str) -> bool:
    return text.isascii() and text.isprintable() and " " not in text


def choose_served_model(served: list[str]) -> str | ProviderFailure:
    """Return the only model that an endpoint serves, or a failure that lists its models."""
    if len(served) == 1:
        return served[0]

    listed = ", ".join(sorted(served)[:8]) or "none"
    message = f"The endpoint serves {len(served)} models ({listed}): choose one with --model."
    return ProviderFailure(kind=ProviderErrorKind.MODEL_UNAVAILABLE, message=message)


MOST_FALLBACKS: Final = 5


class ModelOptions(Record):
    """Options for chat models: see the fields of the same names in `AgentContext`."""

    reasoning_effort: str | None = None
    model_kwargs: JsonMap = Field(default_factory=dict)
    use_responses_api: bool | None = None


PLAIN: Final = ModelOptions()
"""The defaults of the chat models."""


class ModelChoice(Record):
    """A model of a run. `key_variable` names the variable with its endpoint's key, "" for the usual one."""

    model: str | None = None
    base_url: str | None = None
    key_variable: str = ""
    options: ModelOptions = PLAIN

    @property
    def name(self) -> str:
        """The name for messages, without a password that the address may contain."""
        named = self.model or "the default model"
        if self.key_variable and self.base_url:
            return f"{named} at {urlsplit(self.base_url).hostname}"

        return named

    @property
    def breaker_key(self) -> str:
        """The key of its circuit breaker: each model at each address has its own."""
        return f"{self.base_url or ''} {self.model or ''}"


def models_in_order(
    model: str | None, base_url: str | None, fallbacks: Sequence[str], options: ModelOptions = PLAIN
) -> tuple[ModelChoice, ...] | str:
    """Return the run's model and its fallbacks, or what is wrong with the first invalid one."""
    if len(fallbacks) > MOST_FALLBACKS:
        return f"There are {len(fallbacks)} fallback models: name {MOST_FALLBACKS} at most."

    choices = [ModelChoice(model=model, base_url=base_url, options=options)]

    for place, text in enumerate(fallbacks, start=1):
        choice = _read_fallback(text, base_url)
        if isinstance(choice, ModelChoice) and choice.breaker_key in {
            model_choice.breaker_key for model_choice in choices
        }:
            choice = f"({choice.name}) is in the list twice: name each model once."

        if isinstance(choice, str):
            return f"Fallback model {place} {choice}"

        choices.append(choice.model_copy(update={"options": options}))

    return tuple(choices)


def _read_fallback(text: str, base_url: str | None) -> ModelChoice | str:
    """Return the model that this text names, or the problem without the text, which may contain a password."""
    name, at, url = (part.strip() for part in text.partition(" @ "))
    provider, _ = split_provider(name)  # its key is not for the run's endpoint
    is_name = name.isprintable() and "://" not in name and not name.startswith("@") and not name.endswith("@")

    if not name or not is_name or (at and (provider or name == EMBEDDED_MODEL or not is_address(url))):
        return "is none: write `model`, `local`, `provider:model`, or `model @ https://host/v1`."

    if not at:
        is_at_endpoint = name != EMBEDDED_MODEL and provider in {"", "openai"}
        return ModelChoice(model=name, base_url=base_url if is_at_endpoint else None)

    if "@" in urlsplit(url).netloc:
        return f"must not contain a user name or password: put the key into {key_variable_of(url)}."

    is_own_endpoint = base_url is not None and same_origin(url, base_url)
    return ModelChoice(model=name, base_url=url, key_variable="" if is_own_endpoint else key_variable_of(url))
