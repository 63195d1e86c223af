"""Which models may answer a call, in which order, and when the next one is asked.

Pure. The run's own model comes first, then its fallbacks, each written `model` (at the run's own endpoint), `local`
(the embedded model) or `model @ https://host/v1`. A fallback at another host is never sent `OPENAI_API_KEY`: its key is
set in the variable of its host, `endpoint.key_variable_of`.
"""

from collections.abc import Sequence
from typing import Final
from urllib.parse import urlsplit

from pydantic import Field

from nodes.call_model.endpoint import EMBEDDED_MODEL, is_address, key_variable_of, same_origin, split_provider
from nodes.call_model.retry import TRANSIENT
from nodes.records import JsonMap, ProviderErrorKind, ProviderFailure, Record

MOST_FALLBACKS: Final = 5

UNUSABLE: Final = frozenset({ProviderErrorKind.AUTHENTICATION, ProviderErrorKind.MODEL_UNAVAILABLE})
"""Permanent failures that are about this model or its key, not about what was sent: another model may well answer."""


class ModelOptions(Record):
    """How a run wants its chat models set up: see the fields of the same names in `AgentContext`."""

    reasoning_effort: str | None = None
    model_kwargs: JsonMap = Field(default_factory=dict)
    use_responses_api: bool | None = None


PLAIN: Final = ModelOptions()
"""As their makers set them up."""


class ModelChoice(Record):
    """One model that may answer: what `Connect` takes. `key_variable` is "" where the usual key is meant."""

    model: str | None = None
    base_url: str | None = None
    key_variable: str = ""
    options: ModelOptions = PLAIN

    @property
    def name(self) -> str:
        """What a person calls it; never with a password that its address may hold."""
        named = self.model or "the default model"
        return f"{named} at {_host(self.base_url)}" if self.key_variable and self.base_url else named

    @property
    def breaker_key(self) -> str:
        """The name of its circuit breaker: each model at each address has its own."""
        return f"{self.base_url or ''} {self.model or ''}"


class FallbackProblem(Record):
    """A fallback that cannot be used, and one sentence that says why and what to write."""

    place: int
    message: str


class Tried(Record):
    """What came of one model in one call: its last failure, after so many tries."""

    name: str
    kind: ProviderErrorKind
    tries: int = 1


def models_in_order(
    model: str | None, base_url: str | None, fallbacks: Sequence[str], options: ModelOptions = PLAIN
) -> tuple[ModelChoice, ...] | FallbackProblem:
    """The run's own model and its fallbacks, or the first of them that cannot be used; its place counts from 1."""
    if len(fallbacks) > MOST_FALLBACKS:
        message = f"There are {len(fallbacks)} fallback models: name {MOST_FALLBACKS} at most."
        return FallbackProblem(place=MOST_FALLBACKS + 1, message=message)
    choices = [ModelChoice(model=model, base_url=base_url, options=options)]
    for place, text in enumerate(fallbacks, start=1):
        choice = _read_fallback(text, base_url)
        if isinstance(choice, ModelChoice) and choice.breaker_key in {each.breaker_key for each in choices}:
            choice = f"({choice.name}) is in the list already: name each model once."
        if isinstance(choice, str):
            return FallbackProblem(place=place, message=f"Fallback model {place} {choice}")
        choices.append(choice.model_copy(update={"options": options}))
    return tuple(choices)


def next_model(failure: ProviderFailure, index: int, models: Sequence[ModelChoice]) -> int | None:
    """The place of the model to ask after the one at `index`, or None where no other may be asked.

    To be asked once the tries of that model are over. What the endpoint calls wrong, and a prompt that is too long,
    go to no other model.
    """
    may_help = failure.kind in TRANSIENT or failure.kind in UNUSABLE
    return index + 1 if may_help and index + 1 < len(models) else None


def in_words(tried: Sequence[Tried]) -> str:
    """What was tried, in order: "gpt-x: rate limited (3 tries); local: connection". "" where nothing was."""
    return "; ".join(
        f"{each.name}: {each.kind.value.replace('_', ' ')}" + (f" ({each.tries} tries)" if each.tries > 1 else "")
        for each in tried
    )


def _read_fallback(text: str, base_url: str | None) -> ModelChoice | str:
    """The model that this text names, or what is wrong with the text, which is not repeated: it may hold a password."""
    name, at, url = (part.strip() for part in text.partition(" @ "))
    if not name or not name.isprintable() or "://" in name or name.startswith("@") or name.endswith("@"):
        return "has no name: write `model`, `local` or `model @ https://host/v1`."
    if not at:
        if name == EMBEDDED_MODEL:
            return ModelChoice(model=EMBEDDED_MODEL)
        provider, _ = split_provider(name)  # whose key is for its own address, and not for the run's endpoint
        return ModelChoice(model=name, base_url=base_url if provider in {"", "openai"} else None)
    if name == EMBEDDED_MODEL:
        return f"is the embedded model `{EMBEDDED_MODEL}`, which has no address: omit the address."
    if split_provider(name)[0]:
        return "names a provider, whose package knows where it is: omit the address."
    if not is_address(url):
        return "has no address after the @: write `model @ https://host/v1`."
    if "@" in urlsplit(url).netloc:
        return f"may hold no user name or password: put the key into {key_variable_of(url)}."
    own = base_url is not None and same_origin(url, base_url)
    return ModelChoice(model=name, base_url=url, key_variable="" if own else key_variable_of(url))


def _host(url: str) -> str:
    return (urlsplit(url).hostname or "") if is_address(url) else "?"
