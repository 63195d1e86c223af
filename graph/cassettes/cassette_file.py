"""The cassette file: a recorded conversation with a model, as readable YAML without secrets.

The layout is that of vcrpy, with two more keys: `recorded_from` names the origin of the replies, and `settings` holds
what the requests depend on (`model`, `protocol`, `edit_form`, and the version of `mendgraph` that sent them).
"""

import functools
import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from http import HTTPStatus
from importlib import metadata
from typing import Annotated, Any, Final, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, AliasPath, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from mendgraph.graph.configuration.context import AgentContext
from mendgraph.nodes.execute_tools.secrets.redact import Redactor, forms_of, known_values, without_spans
from mendgraph.nodes.language.documents import DocumentProblem, read_yaml
from mendgraph.nodes.records import JsonMap, Record, ToolError, ToolErrorCode, invalid
from mendgraph.nodes.workspace.store.user_files import read_bytes, write_whole

HOST: Final = "http://llm.test"
"""Replaces the endpoint's host in a cassette. Source: RFC 2606, section 2 reserves `.test`."""

VERSION: Final = 1
"""Version of vcrpy's layout."""

MOST_BYTES: Final = 32 * 1024 * 1024
"""Size limit of a cassette file; a long conversation takes a few hundred kilobytes."""

REQUEST_HEADERS: Final = frozenset({"content-type", "accept"})
RESPONSE_HEADERS: Final = frozenset({"content-type", "content-encoding", "retry-after"})
"""The headers that a cassette keeps: they decide how a client reads the reply, and none identifies the sender."""

SCRUBBED: Final = "SCRUBBED"
_SECRET_SHAPES: Final = Redactor()
_UNICODE_LINE_BREAKS: Final = re.compile("[\r\x85\u2028\u2029]")
"""Characters that YAML reads as line breaks and would not preserve in a block."""
_LONGEST_PROBLEM: Final = 300
_REMEDY: Final = "record it again with `pytest --mendgraph-record`, or restore it from version control"


class Exchange(Record):
    """One request and its reply, with secrets replaced.

    `path` has no query, which may hold a key; for a named endpoint it starts with `/v1`. Header names are lower case.
    """

    method: str
    path: str
    request: bytes
    status: int
    headers: dict[str, str]
    response: bytes
    request_headers: dict[str, str] = Field(default={"accept": "application/json", "content-type": "application/json"})


class CassetteFile(Record):
    """The content of a cassette, oldest exchange first."""

    recorded_from: str
    settings: dict[str, str] = Field(default={})
    exchanges: tuple[Exchange, ...] = ()


# --- Secrets


def secrets_in(text: str) -> list[int]:
    """Return the numbers, counted from 1, of the lines that hold something in the shape of a secret."""
    return [text.count("\n", 0, start) + 1 for start, _ in _SECRET_SHAPES.spans(text, names=False)]


def scrubbed(body: bytes, secrets: Iterable[str] = ()) -> bytes:
    """Return a UTF-8 body with these `secrets`, and everything in the shape of a secret, replaced."""
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return body

    for secret in filter(None, secrets):
        text = text.replace(secret, SCRUBBED)

    return without_spans(text, _SECRET_SHAPES.spans(text, names=False), SCRUBBED).encode()


def find_environment_secret(exchanges: Sequence[Exchange], environment: Mapping[str, str]) -> str:
    """Return where a secret of the environment stands, such as "the request of exchange 2 holds ...", or ""."""
    for variable, value in environment.items():
        for form in forms_of(known_values({variable: value})):
            needle = form.encode("utf-8", "surrogateescape")

            for number, exchange in enumerate(exchanges, start=1):
                for side, body in (("request", exchange.request), ("reply", exchange.response)):
                    if needle in body:
                        return f"the {side} of exchange {number} holds the value of {variable}"

    return ""


# --- Settings


def version() -> str:
    """Return the installed version of mendgraph, or ""."""
    try:
        return metadata.version("mendgraph")
    except metadata.PackageNotFoundError:
        return ""


def settings_of(context: AgentContext, model: str, *, embedded: bool, **more: str) -> dict[str, str]:
    """Return the settings that a cassette of a run with this context stores."""
    profile = context.profile(embedded, model)
    pinned = {"protocol": profile.protocol.value, "edit_form": profile.edit_form.value}
    return {"model": model, **pinned, **more, "mendgraph": version()}


_CONTEXT_SETTINGS: Final = ("model", "protocol", "edit_form", "window_tokens")
"""The settings of a cassette that are fields of `AgentContext`."""


def context_on(settings: Mapping[str, str], overrides: JsonMap, workspace: str, base_url: str) -> AgentContext:
    """Return the context of a run on a cassette with these settings; `overrides` take precedence.

    Evidence is off by default: it needs bubblewrap, so prompts would differ between machines.

    Raises:
        ValidationError: the overrides are invalid.
    """
    pinned = {name: settings[name] for name in _CONTEXT_SETTINGS if name in settings}
    defaults: JsonMap = {"base_url": base_url, "evidence": False, **pinned, **overrides}
    return AgentContext.model_validate({**defaults, "workspace": workspace})


def select_headers(headers: Mapping[str, Any], allowed: Iterable[str]) -> dict[str, str]:
    """Return the allowed headers with lower-case names; several values are joined by a comma."""
    allowed_names = frozenset(allowed)
    selected = {}
    for name, value in headers.items():
        if name.lower() not in allowed_names:
            continue

        values = value if isinstance(value, list | tuple) else [value]
        selected[name.lower()] = ", ".join(map(str, values))

    return selected


# --- Reading


def _to_bytes(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "surrogatepass")
    return value or b""


_Body = Annotated[bytes, BeforeValidator(_to_bytes)]
_Path = Annotated[str, AfterValidator(lambda uri: urlsplit(uri).path)]
_Headers = Annotated[dict[str, Any], BeforeValidator(lambda headers: headers or {})]


class _Interaction(BaseModel):
    """An exchange in vcrpy's layout; keys that are not read are allowed."""

    model_config = ConfigDict(strict=True)

    method: str = Field(validation_alias=AliasPath("request", "method"))
    path: _Path = Field(validation_alias=AliasPath("request", "uri"))
    request: _Body = Field(b"", validation_alias=AliasPath("request", "body"))
    request_headers: _Headers = Field(default={}, validation_alias=AliasPath("request", "headers"))
    status: int = Field(ge=100, le=999, validation_alias=AliasPath("response", "status", "code"))
    headers: _Headers = Field(default={}, validation_alias=AliasPath("response", "headers"))
    response: _Body = Field(validation_alias=AliasPath("response", "body", "string"))

    def exchange(self) -> Exchange:
        headers = select_headers(self.headers, RESPONSE_HEADERS)
        request_headers = select_headers(self.request_headers, REQUEST_HEADERS)
        return Exchange(**{**self.model_dump(), "headers": headers, "request_headers": request_headers})


class _Document(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")

    recorded_from: str
    settings: dict[str, str] = Field(default={})
    interactions: list[_Interaction]
    version: Literal[1]


def parse(text: str, name: str = "the cassette") -> CassetteFile | ToolError:
    """Read the text of a cassette file; errors call it `name`."""
    document = read_yaml(text)
    if isinstance(document, DocumentProblem):
        place = ""
        if document.line:
            place = f" (line {document.line}, column {document.column})"

        return _unreadable(name, f"is not YAML{place}: {document.message}")

    try:
        parsed = _Document.model_validate(document)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        place = ".".join(map(str, first["loc"])) or "the top level"
        return _unreadable(name, f"is not a cassette of version {VERSION}: {first['msg']} in {place}")

    exchanges = tuple(interaction.exchange() for interaction in parsed.interactions)
    return CassetteFile(recorded_from=parsed.recorded_from, settings=parsed.settings, exchanges=exchanges)


def read(path: str, name: str = "") -> CassetteFile | ToolError:
    """Read the cassette file at `path`, which errors call `name`; a file that holds secrets is refused."""
    name = name or path
    content = read_bytes(path, MOST_BYTES, name)
    if isinstance(content, ToolError):
        if content.code is ToolErrorCode.NOT_FOUND:
            return content.model_copy(update={"message": f"there is no cassette {name}"})
        return content

    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        return _unreadable(name, f"is not UTF-8 text (line {line})")

    secrets = secrets_in(text)
    if secrets:
        places = ", ".join(f"line {line} holds a secret" for line in secrets[:5])
        remedy = "Revoke it, remove it from the file and its history, and record again"
        return invalid(f"{name} is not played: {places}. {remedy}")

    return parse(text, name)


def _unreadable(name: str, problem: str) -> ToolError:
    return invalid(f"{name} {problem[:_LONGEST_PROBLEM]}: {_REMEDY}")


# --- Writing


def render(cassette: CassetteFile) -> str:
    """Return the text of a cassette file, with bodies as blocks and the JSON of requests indented."""
    import yaml

    document: JsonMap = {"recorded_from": cassette.recorded_from}
    if cassette.settings:
        document["settings"] = dict(cassette.settings)

    document["interactions"] = [_interaction(exchange) for exchange in cassette.exchanges]
    document["version"] = VERSION
    return str(yaml.dump(document, Dumper=_block_dumper(), sort_keys=False, allow_unicode=True, width=10**6))


def write(path: str, cassette: CassetteFile) -> ToolError | None:
    """Replace the cassette file at `path` atomically, creating its folder."""
    try:
        os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
        write_whole(os.path.abspath(path), render(cassette).encode())
    except OSError as error:
        reason = error.strerror or type(error).__name__
        return ToolError(code=ToolErrorCode.IO_ERROR, message=f"{path} cannot be written: {reason}")

    return None


def _interaction(exchange: Exchange) -> JsonMap:
    try:
        phrase = HTTPStatus(exchange.status).phrase
    except ValueError:
        phrase = ""

    request = {
        "method": exchange.method,
        "uri": f"{HOST}{exchange.path}",
        "body": _indented(exchange.request),
        "headers": {name: [value] for name, value in exchange.request_headers.items()},
    }
    response = {
        "status": {"code": exchange.status, "message": phrase},
        "headers": {name: [value] for name, value in exchange.headers.items()},
        "body": {"string": _to_text(exchange.response)},
    }
    return {"request": request, "response": response}


def _indented(body: bytes) -> str | bytes:
    """Indent a JSON object; replies, by contrast, are kept byte for byte."""
    try:
        parsed = json.loads(body)
    except (ValueError, RecursionError):
        return _to_text(body)

    if not isinstance(parsed, dict):
        return _to_text(body)

    return _to_text((json.dumps(parsed, indent=2, ensure_ascii=False) + "\n").encode("utf-8", "surrogatepass"))


def _to_text(body: bytes) -> str | bytes:
    try:
        return body.decode()
    except UnicodeDecodeError:
        return body


@functools.cache
def _block_dumper() -> Any:
    """Return a YAML dumper that writes texts of several lines as literal blocks where YAML preserves them."""
    import yaml

    class BlockDumper(yaml.SafeDumper):
        pass

    def represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
        style = None
        if _UNICODE_LINE_BREAKS.search(text):
            style = '"'
        elif "\n" in text:
            style = "|"

        return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)

    BlockDumper.add_representer(str, represent_text)
    return BlockDumper


# --- Names

SUFFIX: Final = ".yaml"
LONGEST: Final = 120
"""Characters of a file name; file systems allow 255 bytes, and the temporary file of a write has a longer name."""

NAME_PATTERN: Final = "[A-Za-z0-9][A-Za-z0-9._-]{0,99}"
"""The names that a test may choose for its cassette."""

_UNSAFE: Final = re.compile(r"[^A-Za-z0-9._-]+")
_HASH_DIGITS: Final = 8


def cassette_name(node_id: str, chosen: str = "") -> str:
    """Return the path of a test's cassette below the folder of cassettes; `chosen` replaces the name of the test.

    tests/test_calc.py::test_adds              tests/test_calc/test_adds.yaml
    tests/test_calc.py::TestBig::test_adds     tests/test_calc/TestBig.test_adds.yaml
    tests/test_calc.py::test_adds[one-two]     tests/test_calc/test_adds-one-two.yaml
    """
    module, _, test = node_id.partition("::")
    function, bracket, parameters = test.partition("[")
    name = chosen or _safe(function.replace("::", "."), exact=True)
    parameter = parameters.removesuffix("]")

    if bracket:
        # Parameters often differ in capital letters alone, which some file systems ignore.
        name = f"{name}-{_safe(parameter, exact=parameter == parameter.lower())}"
    if len(name) > LONGEST:
        name = f"{name[: LONGEST - _HASH_DIGITS - 1]}-{_hash(name)}"

    parts = [part for part in module.removesuffix(".py").replace("\\", "/").split("/") if part not in ("", ".", "..")]
    return f"{'/'.join(parts)}/{name}{SUFFIX}"


def _safe(text: str, *, exact: bool) -> str:
    """Return the text as a part of a file name, with a hash unless it is `exact` and unchanged."""
    clean = _UNSAFE.sub("_", text)
    if exact and clean == text:
        return clean

    return f"{clean}-{_hash(text)}"


def _hash(text: str) -> str:
    return sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:_HASH_DIGITS]
