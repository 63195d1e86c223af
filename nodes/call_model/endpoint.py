"""Which model at which endpoint: the context first, then the environment, then the embedded model.

Pure: the environment is handed in. A key never leaves this record, and its text form hides it. `OPENAI_API_KEY` is
meant for the run's own endpoint; another host gets only the key that was set for it: see `key_variable_of`.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Final
from urllib.parse import urlsplit

from pydantic import Field, SecretStr

from mendgraph.nodes.records import JsonMap, ProviderErrorKind, ProviderFailure, Record

EMBEDDED_MODEL = "local"  # the model name that asks for the embedded model
EMBEDDED_WINDOW: Final = 8192  # tokens of the window that it is served with
NO_KEY = "not-needed"  # sent to endpoints that want no key; the client refuses to send none
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
"""The variable with a provider's key, and the model that is used where that is set and no model is named.

The first one that is set counts. Each model is in the price list.
"""

PROVIDERS: Final = frozenset(
    {"anthropic", "anthropic_bedrock", "azure_ai", "azure_openai", "baseten", "bedrock", "bedrock_converse"}
    | {"bedrock_mantle_anthropic", "bedrock_mantle_openai", "cohere", "deepseek", "fireworks"}
    | {"google_anthropic_vertex", "google_genai", "google_vertexai", "groq", "huggingface", "ibm", "langsmith"}
    | {"litellm", "meta", "mistralai", "nvidia", "ollama", "openai", "openrouter", "perplexity", "together"}
    | {"upstage", "xai"}
)
"""What may stand before a model's name, as in "anthropic:claude-sonnet-4-6"; a tag such as `:1.5b` is no provider's.

Source: langchain.chat_models.init_chat_model, which is not imported for it; a test compares the two.
"""


class Endpoint(Record):
    """Where calls go. `base_url` is "" for the provider's default; `model` is "" when the endpoint is to name it.

    `provider` is the one of `PROVIDERS` whose package makes the calls, "" for an OpenAI-compatible endpoint.
    `key_variable` is the environment variable that `api_key` came from, or would have come from.
    """

    model: str
    base_url: str = ""
    api_key: SecretStr = SecretStr(NO_KEY)
    embedded: bool = False
    key_variable: str = USUAL_KEY
    provider: str = ""

    @property
    def full_name(self) -> str:
        """The model as a person names it: after its provider, where it has one."""
        if self.provider:
            return f"{self.provider}:{self.model}"
        return self.model


def find_endpoint(
    model: str | None, base_url: str | None, environment: Mapping[str, str], *, key_variable: str = ""
) -> Endpoint | ProviderFailure:
    """Decide on the endpoint, or say which one setting is missing.

    Order: `model`, then `MENDGRAPH_MODEL`; then the one model of an endpoint that is named, the default model of the
    provider whose key is set (`DEFAULT_MODELS`), and the embedded model.
    `key_variable` names the variable with the key of an endpoint that is not the run's own; where nothing is set there,
    `OPENAI_API_KEY` is taken only for the origin of `OPENAI_BASE_URL`, for which it is set.
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
        message = f"{variable} holds a character that no key has: set it again, without spaces or line breaks."
        return ProviderFailure(kind=ProviderErrorKind.AUTHENTICATION, message=message)

    if not key and not url:
        message = (
            f"Model {model!r} needs an endpoint: set OPENAI_API_KEY, or OPENAI_BASE_URL for a server of your own, "
            "or omit the model to use the embedded one. Another provider's stands after its name: anthropic:MODEL."
        )

        return ProviderFailure(kind=ProviderErrorKind.MODEL_UNAVAILABLE, message=message)

    return Endpoint(model=model or "", base_url=url, api_key=SecretStr(key or NO_KEY), key_variable=variable)


def named_model(base_url: str | None, environment: Mapping[str, str]) -> str | None:
    """The model of a run that names none, as the environment says; None for the endpoint's own or the embedded one."""
    variable = deciding_variable(base_url, environment)
    if variable == MODEL_VARIABLE:
        return environment[variable].strip()

    return DEFAULT_MODELS.get(variable)


def deciding_variable(base_url: str | None, environment: Mapping[str, str]) -> str:
    """The variable that decides on the model of a run that names none; "" where no variable does."""
    if environment.get(MODEL_VARIABLE, "").strip():
        return MODEL_VARIABLE
    if base_url or environment.get("OPENAI_BASE_URL", "").strip():
        return ""

    return next((key for key in DEFAULT_MODELS if environment.get(key, "").strip()), "")


def _no_address(url: str) -> ProviderFailure:
    message = f"The endpoint {url!r} is not an address: it should look like http://127.0.0.1:8080/v1."
    return ProviderFailure(kind=ProviderErrorKind.MODEL_UNAVAILABLE, message=message)


def split_provider(model: str) -> tuple[str, str]:
    """The provider before a model's name, "" where it names none, and the name."""
    provider, colon, name = model.partition(":")
    if colon and name and provider in PROVIDERS:
        return (provider, name)

    return ("", model)


def key_variable_of(base_url: str) -> str:
    """The variable with the key of a host that is not the run's own: `MENDGRAPH_API_KEY_` and the host's name.

    Letters are upper case, a dot becomes `_` and a hyphen `__`, so that no two host names share a variable:
    `https://openrouter.ai/api/v1` has `MENDGRAPH_API_KEY_OPENROUTER_AI`. "" for what is no address.
    """
    host = ""
    if is_address(base_url):
        host = urlsplit(base_url).hostname or ""

    if host:
        return KEY_PREFIX + re.sub(r"[^A-Z0-9_]", "_", host.upper().replace("-", "__"))

    return ""


def same_origin(one: str, other: str) -> bool:
    """Whether two addresses are the same server, reached in the same way; never for what is no address."""
    return is_address(one) and is_address(other) and _origin(one) == _origin(other)


def is_address(url: str) -> bool:
    """Whether the HTTP client can be built for this address; it raises for others."""
    try:
        parts = urlsplit(url)
        has_port = parts.port is None or parts.port > 0
    except ValueError:
        return False

    return parts.scheme in ("http", "https") and bool(parts.hostname) and has_port and _is_sendable(url)


def has_path(url: str) -> bool:
    """Whether an address says where below its host the endpoint is; "" is the provider's own."""
    return not url or bool(urlsplit(url).path.strip("/"))


def _origin(url: str) -> tuple[str, str, int]:
    parts = urlsplit(url)
    return parts.scheme, parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)


def _is_sendable(text: str) -> bool:
    return text.isascii() and text.isprintable() and " " not in text


def choose_served_model(served: list[str]) -> str | ProviderFailure:
    """Take the one model that an endpoint serves; where it serves several, a person has to choose."""
    if len(served) == 1:
        return served[0]

    listed = ", ".join(sorted(served)[:8]) or "none"
    message = f"The endpoint serves {len(served)} models ({listed}): choose one with --model."
    return ProviderFailure(kind=ProviderErrorKind.MODEL_UNAVAILABLE, message=message)


MOST_FALLBACKS: Final = 5


class ModelOptions(Record):
    """How a run wants its chat models set up: see the fields of the same names in `AgentContext`."""

    reasoning_effort: str | None = None
    model_kwargs: JsonMap = Field(default_factory=dict)
    use_responses_api: bool | None = None


PLAIN: Final = ModelOptions()
"""As their makers set them up."""


class ModelChoice(Record):
    """One model that may answer. `key_variable` names the variable with its endpoint's key, "" for the usual one."""

    model: str | None = None
    base_url: str | None = None
    key_variable: str = ""
    options: ModelOptions = PLAIN

    @property
    def name(self) -> str:
        """What a person calls it; never with a password that its address may hold."""
        named = self.model or "the default model"
        if self.key_variable and self.base_url:
            return f"{named} at {urlsplit(self.base_url).hostname}"

        return named

    @property
    def breaker_key(self) -> str:
        """The name of its circuit breaker: each model at each address has its own."""
        return f"{self.base_url or ''} {self.model or ''}"


def models_in_order(
    model: str | None, base_url: str | None, fallbacks: Sequence[str], options: ModelOptions = PLAIN
) -> tuple[ModelChoice, ...] | str:
    """The run's own model and its fallbacks; or why the first that cannot be used cannot, and what to write."""
    if len(fallbacks) > MOST_FALLBACKS:
        return f"There are {len(fallbacks)} fallback models: name {MOST_FALLBACKS} at most."

    choices = [ModelChoice(model=model, base_url=base_url, options=options)]

    for place, text in enumerate(fallbacks, start=1):
        choice = _read_fallback(text, base_url)
        if isinstance(choice, ModelChoice) and choice.breaker_key in {
            model_choice.breaker_key for model_choice in choices
        }:
            choice = f"({choice.name}) is in the list already: name each model once."

        if isinstance(choice, str):
            return f"Fallback model {place} {choice}"

        choices.append(choice.model_copy(update={"options": options}))

    return tuple(choices)


def _read_fallback(text: str, base_url: str | None) -> ModelChoice | str:
    """The model that this text names, or what is wrong with the text, which is not repeated: it may hold a password."""
    name, at, url = (part.strip() for part in text.partition(" @ "))
    provider, _ = split_provider(name)  # whose key is for its own address, and not for the run's endpoint
    is_name = name.isprintable() and "://" not in name and not name.startswith("@") and not name.endswith("@")

    if not name or not is_name or (at and (provider or name == EMBEDDED_MODEL or not is_address(url))):
        return "is none: write `model`, `local`, `provider:model`, or `model @ https://host/v1`."

    if not at:
        is_at_endpoint = name != EMBEDDED_MODEL and provider in {"", "openai"}
        return ModelChoice(model=name, base_url=base_url if is_at_endpoint else None)

    if "@" in urlsplit(url).netloc:
        return f"may hold no user name or password: put the key into {key_variable_of(url)}."

    is_own_endpoint = base_url is not None and same_origin(url, base_url)
    return ModelChoice(model=name, base_url=url, key_variable="" if is_own_endpoint else key_variable_of(url))
