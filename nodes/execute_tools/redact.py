"""Nothing secret in what is shown or stored: by key name and by shape, at any depth. Pure, and it fails closed."""

import re
from collections.abc import Mapping
from dataclasses import asdict, is_dataclass
from typing import Any, Final

from pydantic import BaseModel

PLACEHOLDER: Final = "***"
"""Stands for what was taken out. Source: spec 4."""

_SECRET_KEY = re.compile(
    r"passw(?:or)?d|passphrase|secret|token|(?:api|access|private)_?-?key|authorization|bearer|credential|cookie",
    re.IGNORECASE,
)
"""Source: spec 4's key names, and those that mean the same."""

_MEASURE = re.compile(
    r"tokeni[sz]\w*|(?:max|min|num)_?tokens?|token_?(?:count|limit|budget|usage|type|id)\w*"
    r"|(?<!access_)(?<!refresh_)(?<!auth_)(?<!api_)(?<!bearer_)tokens(?![a-z])",
    re.IGNORECASE,
)
"""Words that speak of tokens as a measure of text."""

_FILE_NAME = re.compile(r"/|\.[A-Za-z0-9]{1,4}$")
"""Keys that are paths, as in a map of files to hashes."""

_START = r"(?<![A-Za-z0-9_-])"
_SHAPES: Final = tuple(
    re.compile(shape, flags)
    for shape, flags in (
        (r"-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----.*?(?:-----END [A-Z ]{0,40}PRIVATE KEY-----|\Z)", re.DOTALL),
        (_START + r"(?:sk|rk)[-_](?=[A-Za-z_-]*[0-9])[A-Za-z0-9_-]{16,}", 0),  # OpenAI, Anthropic, Stripe
        (_START + r"(?:gh[pousr]_|github_pat_|glpat-|hf_|npm_|pypi-)[A-Za-z0-9_-]{16,}", 0),
        (_START + r"(?:AKIA|ASIA)[A-Z0-9]{16}(?![A-Za-z0-9])", 0),
        (_START + r"AIza[A-Za-z0-9_-]{30,}", 0),
        (_START + r"xox[abeoprs]-[A-Za-z0-9-]{10,}", 0),
        (_START + r"eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}", 0),  # JSON web tokens
        (r"(?<=\bbearer )[A-Za-z0-9._~+/=-]{8,}", re.IGNORECASE),
        (r"(?<=\bbasic )[A-Za-z0-9+/=]{12,}", re.IGNORECASE),
    )
)
_URL_LOGIN = re.compile(r"(?P<scheme>\b[a-z][a-z0-9+.-]{1,20}://)[^\s/@:]*:[^\s/@]+(?=@)", re.IGNORECASE)
_ASSIGNMENT = re.compile(
    r"(?P<name>\b[A-Za-z][A-Za-z0-9_-]{2,60})"
    r"""(?P<link>\\?["']?\s?[=:]\s?\\?["']?)"""
    r"""(?P<value>[^\s"'\\,;=:(){}\[\]]{8,}+=*)(?![(\[])"""
)
"""NAME=value, name: value, "name": "value", also with escaped quotes; a value that is called or indexed is code."""


def redact(value: Any) -> Any:
    """A copy made of plain JSON values, with each secret replaced by `***`; `***` alone where that is impossible."""
    try:
        return _redacted(value, secret=False)
    except Exception:  # noqa: BLE001 - what cannot be looked through is not shown
        return PLACEHOLDER


def is_secret_key(name: str) -> bool:
    """Whether a value under this name is a secret, whatever it looks like."""
    return bool(_SECRET_KEY.search(_MEASURE.sub("", name))) and not _FILE_NAME.search(name)


def _redacted(value: Any, *, secret: bool) -> Any:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return PLACEHOLDER if secret else _redacted_text(value)
    if isinstance(value, int | float):
        return PLACEHOLDER if secret else value
    if isinstance(value, Mapping):
        return {
            _redacted_text(key): _redacted(each, secret=secret or is_secret_key(key)) for key, each in _items(value)
        }
    if isinstance(value, list | tuple | set | frozenset):
        return [_redacted(each, secret=secret) for each in value]
    return _redacted(_plain(value), secret=secret)


def _items(value: Mapping[Any, Any]) -> list[tuple[str, Any]]:
    return [(str(key), each) for key, each in value.items()]


def _plain(value: Any) -> Any:
    """A record as a map; of bytes only the length; of anything else its type."""
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    if isinstance(value, bytes | bytearray | memoryview):
        return f"<{len(value)} bytes>"
    return f"<{type(value).__name__}>"


def _redacted_text(text: str) -> str:
    for shape in _SHAPES:
        text = shape.sub(PLACEHOLDER, text)
    text = _URL_LOGIN.sub(rf"\g<scheme>{PLACEHOLDER}", text)
    return _ASSIGNMENT.sub(_redacted_assignment, text)


def _redacted_assignment(found: re.Match[str]) -> str:
    if not is_secret_key(found["name"]) or found["value"].startswith(PLACEHOLDER):
        return found[0]
    return f"{found['name']}{found['link']}{PLACEHOLDER}"
