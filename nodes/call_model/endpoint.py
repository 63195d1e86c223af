"""Which model at which endpoint: the context first, then the environment, then the embedded model.

Pure: the environment is handed in. A key never leaves this record, and its text form hides it.
"""

from collections.abc import Mapping
from urllib.parse import urlsplit

from pydantic import SecretStr

from nodes.records import ProviderErrorKind, ProviderFailure, Record

EMBEDDED_MODEL = "local"
"""The model name that asks for the embedded model."""

NO_KEY = "not-needed"
"""Sent to endpoints that want no key; the client refuses to send none."""


class Endpoint(Record):
    """Where calls go. `base_url` is "" for the provider's default; `model` is "" when the endpoint is to name it."""

    model: str
    base_url: str = ""
    api_key: SecretStr = SecretStr(NO_KEY)
    embedded: bool = False


def find_endpoint(
    model: str | None, base_url: str | None, environment: Mapping[str, str]
) -> Endpoint | ProviderFailure:
    """Decide on the endpoint, or say which one setting is missing.

    Order: an explicit model or endpoint, then `OPENAI_BASE_URL` and `OPENAI_API_KEY`, then the embedded model.
    """
    key = environment.get("OPENAI_API_KEY", "").strip()
    url = (base_url or environment.get("OPENAI_BASE_URL", "")).strip()
    if model == EMBEDDED_MODEL or not (model or url or key):
        return Endpoint(model=EMBEDDED_MODEL, embedded=True)
    if url and not _is_address(url):
        message = f"The endpoint {url!r} is not an address: it should look like http://127.0.0.1:8080/v1."
        return ProviderFailure(kind=ProviderErrorKind.MODEL_UNAVAILABLE, message=message)
    if not _is_sendable(key):
        message = "OPENAI_API_KEY holds a character that no key has: set it again, without spaces or line breaks."
        return ProviderFailure(kind=ProviderErrorKind.AUTHENTICATION, message=message)
    if not key and not url:
        message = (
            f"Model {model!r} needs an endpoint: set OPENAI_API_KEY, or OPENAI_BASE_URL for a server of your own, "
            "or leave the model away to use the embedded one."
        )
        return ProviderFailure(kind=ProviderErrorKind.MODEL_UNAVAILABLE, message=message)
    if not model and not url:
        message = "OPENAI_API_KEY is set but no model is named: choose one with --model, or `--model local`."
        return ProviderFailure(kind=ProviderErrorKind.MODEL_UNAVAILABLE, message=message)
    return Endpoint(model=model or "", base_url=url, api_key=SecretStr(key or NO_KEY))


def _is_address(url: str) -> bool:
    """Whether the HTTP client can be built for this address; it raises for others."""
    try:
        parts = urlsplit(url)
        has_port = parts.port is None or parts.port > 0
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and bool(parts.hostname) and has_port and _is_sendable(url)


def _is_sendable(text: str) -> bool:
    return text.isascii() and text.isprintable() and " " not in text


def choose_served_model(served: list[str]) -> str | ProviderFailure:
    """Take the one model that an endpoint serves; where it serves several, a person has to choose."""
    if len(served) == 1:
        return served[0]
    listed = ", ".join(sorted(served)[:8]) or "none"
    message = f"The endpoint serves {len(served)} models ({listed}): choose one with --model."
    return ProviderFailure(kind=ProviderErrorKind.MODEL_UNAVAILABLE, message=message)
