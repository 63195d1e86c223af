"""A cassette on disk: a recorded conversation with a model, as YAML that a person can read, without secrets.

The layout is vcrpy's, with two lines of our own on top: `recorded_from` says who answered, and `settings` what the
requests depend on (`model`, `protocol`, `edit_form`, and the version of `mendgraph` that sent them). Pure; what cannot
be read is a value that names the file, the place and the remedy.
"""

import functools
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from http import HTTPStatus
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

from pydantic import Field

from nodes.execute_tools.secrets.known_secrets import forms_of, known_values
from nodes.execute_tools.secrets.redact import Redactor, without_spans
from nodes.language.documents import DocumentProblem, read_yaml
from nodes.records import JsonMap, Record, ToolError, ToolErrorCode

HOST: Final = "http://llm.test"
"""What stands in a cassette for the endpoint's own host. Source: RFC 2606, section 2: `.test` is nobody's."""

VERSION: Final = 1
"""vcrpy's number of the layout."""

MOST_BYTES: Final = 32 * 1024 * 1024
"""A larger file is no conversation: a long one takes a few hundred kilobytes."""

REQUEST_HEADERS: Final = frozenset({"content-type", "accept"})
RESPONSE_HEADERS: Final = frozenset({"content-type", "retry-after"})
"""The headers that a cassette keeps: what decides how a client reads the answer, and nothing that tells who asked."""

SCRUBBED: Final = "SCRUBBED"
MACHINE_SHAPES: Final[Mapping[str, re.Pattern[str]]] = {
    "a home directory": re.compile(r"(?<![\w.])/(?:(?:home|Users)/\w|root/)"),
    "a test's own folder": re.compile(r"/pytest-of-\w+"),
}
"""What would make a recording play on one machine only."""

_SHAPES: Final = Redactor()
_FOREIGN_BREAKS: Final = re.compile("[\r\x85\u2028\u2029]")
"""What YAML takes for the end of a line, too, and would not give back as it was."""
_TOP_KEYS: Final = frozenset({"recorded_from", "settings", "interactions", "version"})
_LONGEST: Final = 300
"""Characters of what is wrong with a cassette, which may quote it."""
_REMEDY: Final = "record it again with `pytest --mendgraph-record`, or take it back from version control"


class Exchange(Record):
    """One request and what was answered. Both bodies are as they were sent, but for secrets and the layout of JSON.

    `path` is that of the request; where an endpoint was named it is below `/v1`, whatever that endpoint's own path was.
    It has no query, which may hold a key. Header names are lower case, several values are joined by a comma.
    """

    method: str
    path: str
    request: bytes
    status: int
    headers: dict[str, str]
    response: bytes
    request_headers: dict[str, str] = Field({"accept": "application/json", "content-type": "application/json"})


class CassetteFile(Record):
    """All that a cassette holds, oldest exchange first."""

    recorded_from: str
    settings: dict[str, str] = Field({})
    exchanges: tuple[Exchange, ...] = ()


class Finding(NamedTuple):
    """Something that a cassette must not hold: in which line, counted from 1, and what it is, without repeating it."""

    line: int
    what: str


def parse(text: str, name: str = "the cassette") -> CassetteFile | ToolError:
    """Read the text of a cassette file; `name` is what an error calls it."""
    if not text.strip():
        return _unreadable(name, "is empty")
    if len(text) > MOST_BYTES:
        return _unreadable(name, f"has {len(text):,} characters, more than a conversation can have")
    document = read_yaml(text)
    if isinstance(document, DocumentProblem):
        place = f" (line {document.line}, column {document.column})" if document.line else ""
        return _unreadable(name, f"is not YAML{place}: {document.message}")
    try:
        return _cassette_of(document)
    except _ShapeError as error:
        return _unreadable(name, str(error))


def decode(content: bytes, name: str = "the cassette") -> str | ToolError:
    """The text of a cassette file's bytes."""
    if len(content) > MOST_BYTES:
        return _unreadable(name, f"has {len(content):,} bytes, more than a conversation can have")
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        return _unreadable(name, f"is not UTF-8 text (line {line})")


def render(cassette: CassetteFile) -> str:
    """The text of a cassette file: bodies in block style, JSON of requests laid out in lines."""
    import yaml

    settings = {"settings": dict(cassette.settings)} if cassette.settings else {}
    interactions = [_interaction(exchange) for exchange in cassette.exchanges]
    document = {
        "recorded_from": cassette.recorded_from,
        **settings,
        "interactions": interactions,
        "version": VERSION,
    }
    return str(yaml.dump(document, Dumper=_block_dumper(), sort_keys=False, allow_unicode=True, width=10**6))


def secrets_in(text: str) -> list[Finding]:
    """Whatever has the shape of a secret."""
    found = _SHAPES.spans(text, names=False)
    return [Finding(text.count("\n", 0, start) + 1, "a secret") for start, _ in found]


def machine_traces_in(text: str) -> list[Finding]:
    """Whatever would make a cassette play on one machine only."""
    return [
        Finding(text.count("\n", 0, found.start()) + 1, what)
        for what, shape in MACHINE_SHAPES.items()
        for found in shape.finditer(text)
    ]


def scrubbed(body: bytes, known: Iterable[str] = ()) -> bytes:
    """A body with each secret replaced: the `known` ones and all that have the shape of one. Only UTF-8 is read."""
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return body
    for secret in known:
        text = text.replace(secret, SCRUBBED) if secret else text
    return without_spans(text, _SHAPES.spans(text, names=False), SCRUBBED).encode()


def secret_variable(exchanges: Sequence[Exchange], environment: Mapping[str, str]) -> str:
    """Where the first secret stands and which variable holds it, such as "the request of exchange 2 holds ...".

    "" where there is none. The secret itself is not repeated.
    """
    secrets = {name: forms_of(known_values({name: value})) for name, value in environment.items()}
    forms = [(name, form.encode("utf-8", "surrogateescape")) for name, found in secrets.items() for form in found]
    for number, exchange in enumerate(exchanges, start=1):
        for side, body in (("request", exchange.request), ("reply", exchange.response)):
            for name, form in forms:
                if form in body:
                    return f"the {side} of exchange {number} holds the value of {name}"
    return ""


def only_headers(headers: Mapping[str, Any], allowed: Iterable[str]) -> dict[str, str]:
    """The headers that a cassette keeps, in lower case, each with all of its values."""
    kept = frozenset(allowed)
    return {name.lower(): _joined(value) for name, value in headers.items() if name.lower() in kept}


# --- Reading


class _ShapeError(Exception):
    """A document that is YAML but no cassette; the message says where."""


def _cassette_of(document: Any) -> CassetteFile:
    top = _map(document, "the top level")
    if "recorded_from" not in top or "interactions" not in top:
        raise _ShapeError("is no cassette of mendgraph: `recorded_from` or `interactions` is missing at the top level")
    if top.get("version") != VERSION:
        raise _ShapeError(f"has version {top.get('version')!r}, and this mendgraph reads version {VERSION}")
    unknown = sorted(map(str, set(top) - _TOP_KEYS))
    if unknown:
        raise _ShapeError(f"has keys at the top level that this mendgraph does not know: {', '.join(unknown)[:100]}")
    return CassetteFile(
        recorded_from=_text(top["recorded_from"], "recorded_from"),
        settings=_settings_of(_map(top.get("settings", {}), "settings")),
        exchanges=tuple(
            _exchange_of(each, f"interactions[{index}]")
            for index, each in enumerate(_list(top["interactions"], "interactions"))
        ),
    )


def _settings_of(value: JsonMap) -> dict[str, str]:
    from graph.cassettes.pinned import pinned_problem

    settings = {_text(key, "settings"): _text(each, f"settings.{key}") for key, each in value.items()}
    problem = pinned_problem(settings)
    if problem:
        raise _ShapeError(f"has {problem}")
    return settings


def _exchange_of(value: Any, at: str) -> Exchange:
    request = _map(_member(value, "request", at), f"{at}.request")
    response = _map(_member(value, "response", at), f"{at}.response")
    status = _member(_member(response, "status", f"{at}.response"), "code", f"{at}.response.status")
    if type(status) is not int or not 100 <= status <= 999:
        raise _ShapeError(f"has no HTTP status in {at}.response.status.code")
    body = _member(_member(response, "body", f"{at}.response"), "string", f"{at}.response.body")
    return Exchange(
        method=_text(_member(request, "method", f"{at}.request"), f"{at}.request.method"),
        path=_path_of(_member(request, "uri", f"{at}.request"), f"{at}.request.uri"),
        request=_bytes(request.get("body"), f"{at}.request.body"),
        request_headers=_headers_of(request.get("headers"), f"{at}.request.headers"),
        status=status,
        headers=_headers_of(response.get("headers"), f"{at}.response.headers"),
        response=_bytes(body, f"{at}.response.body.string"),
    )


def _path_of(uri: Any, at: str) -> str:
    try:
        return urlsplit(_text(uri, at)).path
    except ValueError:
        raise _ShapeError(f"has no address in {at}") from None


def _member(value: Any, key: str, at: str) -> Any:
    found = _map(value, at)
    if key not in found:
        raise _ShapeError(f"has no {key!r} in {at}")
    return found[key]


def _map(value: Any, at: str) -> JsonMap:
    if not isinstance(value, dict):
        raise _ShapeError(f"has {_kind(value)} in {at}, and a map belongs there")
    return value


def _list(value: Any, at: str) -> list[Any]:
    if not isinstance(value, list):
        raise _ShapeError(f"has {_kind(value)} in {at}, and a list belongs there")
    return value


def _text(value: Any, at: str) -> str:
    if not isinstance(value, str):
        raise _ShapeError(f"has {_kind(value)} in {at}, and text belongs there (put it in quotes)")
    return value


def _bytes(value: Any, at: str) -> bytes:
    if value is None or isinstance(value, bytes):
        return value or b""
    return _text(value, at).encode("utf-8", "surrogatepass")


def _headers_of(value: Any, at: str) -> dict[str, str]:
    headers = {} if value is None else _map(value, at)
    return {_text(name, at).lower(): _header_of(each, f"{at}.{name}") for name, each in headers.items()}


def _header_of(value: Any, at: str) -> str:
    return _joined([_text(each, at) for each in value]) if isinstance(value, list) else _text(value, at)


def _joined(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)


def _kind(value: Any) -> str:
    return "nothing" if value is None else f"a value of type {type(value).__name__}"


def _unreadable(name: str, problem: str) -> ToolError:
    return ToolError(code=ToolErrorCode.INVALID_ARGUMENT, message=f"{name} {problem[:_LONGEST]}: {_REMEDY}")


# --- Writing


def _interaction(exchange: Exchange) -> JsonMap:
    request = {
        "method": exchange.method,
        "uri": f"{HOST}{exchange.path}",
        "body": _readable(exchange.request),
        "headers": {name: [value] for name, value in exchange.request_headers.items()},
    }
    response = {
        "status": {"code": exchange.status, "message": _phrase(exchange.status)},
        "headers": {name: [value] for name, value in exchange.headers.items()},
        "body": {"string": _as_text(exchange.response)},
    }
    return {"request": request, "response": response}


def _readable(body: bytes) -> str | bytes:
    """A request's JSON laid out in lines; a response's bytes are evidence and stay untouched."""
    try:
        parsed = json.loads(body)
    except (ValueError, RecursionError):
        return _as_text(body)
    if not isinstance(parsed, dict):
        return _as_text(body)
    return _as_text((json.dumps(parsed, indent=2, ensure_ascii=False) + "\n").encode("utf-8", "surrogatepass"))


def _as_text(body: bytes) -> str | bytes:
    try:
        return body.decode()
    except UnicodeDecodeError:
        return body


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return ""


@functools.cache
def _block_dumper() -> Any:
    """A dumper that writes text of more than one line as a literal block, where YAML can hold it."""
    import yaml

    class BlockDumper(yaml.SafeDumper):
        pass

    def represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
        style = '"' if _FOREIGN_BREAKS.search(text) else "|" if "\n" in text else None
        return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)

    BlockDumper.add_representer(str, represent_text)
    return BlockDumper
