"""A cassette on disk: a recorded conversation with a model, as YAML that a person can read, without secrets.

The layout is vcrpy's, with two lines of our own on top: `recorded_from` says who answered, and `settings` what the
requests depend on (`model`, `protocol`, `edit_form`, and the version of `mendgraph` that sent them). What cannot be
read is a value that names the file, the place and the remedy.
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

from pydantic import (
    AfterValidator,
    AliasChoices,
    AliasPath,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
)

from mendgraph.graph.configuration.context import AgentContext
from mendgraph.nodes.execute_tools.secrets.redact import Redactor, forms_of, known_values, without_spans
from mendgraph.nodes.execute_tools.store.user_files import read_bytes, write_whole
from mendgraph.nodes.language.documents import DocumentProblem, read_yaml
from mendgraph.nodes.records import JsonMap, Record, ToolError, ToolErrorCode, invalid

HOST: Final = "http://llm.test"
"""What stands in a cassette for the endpoint's own host. Source: RFC 2606, section 2: `.test` is nobody's."""

FOREIGN_OPTION: Final = "--mendgraph-foreign"
"""The option of pytest with which cassettes of vcrpy and pydantic-ai are replayed."""

VERSION: Final = 1
"""vcrpy's number of the layout."""

MOST_BYTES: Final = 32 * 1024 * 1024
"""A larger file is no conversation: a long one takes a few hundred kilobytes."""

REQUEST_HEADERS: Final = frozenset({"content-type", "accept"})
RESPONSE_HEADERS: Final = frozenset({"content-type", "retry-after"})
"""The headers that a cassette keeps: what decides how a client reads the answer, and nothing that tells who asked."""

RECORDED_HEADERS: Final = RESPONSE_HEADERS | {"content-encoding"}
"""Those of a response that vcrpy has recorded: its body may still be packed."""

SCRUBBED: Final = "SCRUBBED"
_SHAPES: Final = Redactor()
_FOREIGN_BREAKS: Final = re.compile("[\r\x85\u2028\u2029]")
"""What YAML takes for the end of a line, too, and would not give back as it was."""
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
    request_headers: dict[str, str] = Field(default={"accept": "application/json", "content-type": "application/json"})


class CassetteFile(Record):
    """All that a cassette holds, oldest exchange first."""

    recorded_from: str
    settings: dict[str, str] = Field(default={})
    exchanges: tuple[Exchange, ...] = ()


def parse(text: str, name: str = "the cassette", *, foreign: bool = False) -> CassetteFile | ToolError:
    """Read the text of a cassette file; `name` is what an error calls it.

    `foreign`: a file that vcrpy, pytest-recording or pydantic-ai has recorded is read as well.
    """
    if not text.strip():
        return _unreadable(name, "is empty")

    document = read_yaml(text)
    if isinstance(document, DocumentProblem):
        place = ""
        if document.line:
            place = f" (line {document.line}, column {document.column})"

        return _unreadable(name, f"is not YAML{place}: {document.message}")

    other = _other_version(document, name)
    if other is not None:
        return other

    if _is_foreign(document):
        if not foreign:
            return _unreadable(name, f"was recorded by another project: replay it with `pytest {FOREIGN_OPTION}`", "")

        document = {"version": VERSION, **document, "recorded_from": "another project"}

    cassette = _cassette_of(document)
    if isinstance(cassette, str):
        return _unreadable(name, cassette)

    return cassette


def render(cassette: CassetteFile) -> str:
    """The text of a cassette file: bodies in block style, JSON of requests laid out in lines."""
    import yaml

    if cassette.settings:
        settings = {"settings": dict(cassette.settings)}
    else:
        settings = {}

    interactions = [_interaction(exchange) for exchange in cassette.exchanges]
    document = {
        "recorded_from": cassette.recorded_from,
        **settings,
        "interactions": interactions,
        "version": VERSION,
    }

    return str(yaml.dump(document, Dumper=_block_dumper(), sort_keys=False, allow_unicode=True, width=10**6))


def secrets_in(text: str) -> list[int]:
    """The lines, counted from 1, with whatever has the shape of a secret."""
    return [text.count("\n", 0, start) + 1 for start, _ in _SHAPES.spans(text, names=False)]


def scrubbed(body: bytes, secrets: Iterable[str] = ()) -> bytes:
    """A body with each secret replaced: these `secrets`, and all texts of their shape. Only UTF-8 is read."""
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return body

    for secret in secrets:
        if secret:
            text = text.replace(secret, SCRUBBED)

    return without_spans(text, _SHAPES.spans(text, names=False), SCRUBBED).encode()


def secret_variable(exchanges: Sequence[Exchange], environment: Mapping[str, str]) -> str:
    """The place of the first secret and its variable, such as "the request of exchange 2 holds ...".

    "" where there is none. The secret itself is not quoted.
    """
    forms: list[tuple[str, bytes]] = []
    for name, value in environment.items():
        secret_forms = forms_of(known_values({name: value}))
        forms += [(name, form.encode("utf-8", "surrogateescape")) for form in secret_forms]

    for number, exchange in enumerate(exchanges, start=1):
        for side, body in (("request", exchange.request), ("reply", exchange.response)):
            for name, form in forms:
                if form in body:
                    return f"the {side} of exchange {number} holds the value of {name}"

    return ""


def version() -> str:
    """The version of mendgraph that is running; "" where it is not installed."""
    try:
        return metadata.version("mendgraph")
    except metadata.PackageNotFoundError:
        return ""


def settings_of(context: AgentContext, model: str, *, embedded: bool, **more: str) -> dict[str, str]:
    """The settings that a cassette of this run stores."""
    profile = context.profile(embedded, model)
    pinned = {"protocol": profile.protocol.value, "edit_form": profile.edit_form.value}
    return {"model": model, **pinned, **more, "mendgraph": version()}


REPLAYED: Final = ("model", "protocol", "edit_form", "window_tokens")
"""The settings of a cassette that are settings of `AgentContext`, with the same meaning."""


def context_on(settings: Mapping[str, str], overrides: JsonMap, workspace: str, base_url: str) -> AgentContext:
    """The context of a run on a cassette with these settings, which `overrides` replace.

    Evidence is off by default: it needs bubblewrap, so prompts would differ from machine to machine.

    Raises:
        ValidationError: the overrides do not fit.
    """
    pinned = {name: settings[name] for name in REPLAYED if name in settings}
    defaults: JsonMap = {"base_url": base_url, "evidence": False, **pinned, **overrides}
    return AgentContext.model_validate({**defaults, "workspace": workspace})


def only_headers(headers: Mapping[str, Any], allowed: Iterable[str]) -> dict[str, str]:
    """The headers that a cassette keeps, in lower case, each with all of its values."""
    allowed_names = frozenset(allowed)
    return {name.lower(): _joined(value) for name, value in headers.items() if name.lower() in allowed_names}


# --- Reading


def _lower_headers(headers: Any) -> dict[str, str]:
    if not isinstance(headers, dict):
        return {}

    return {name.lower(): _joined(value) for name, value in headers.items()}


_Headers = Annotated[dict[str, str], BeforeValidator(_lower_headers)]


def _as_bytes(value: Any) -> Any:
    """A body as it was sent; pydantic-ai keeps JSON as a value of YAML."""
    if isinstance(value, dict | list):
        value = json.dumps(value, ensure_ascii=False)

    if isinstance(value, str):
        return value.encode("utf-8", "surrogatepass")

    return value or b""


_Bytes = Annotated[bytes, BeforeValidator(_as_bytes)]


class _Interaction(BaseModel):
    """An exchange in vcrpy's layout, in which tools keep more than we read."""

    model_config = ConfigDict(strict=True)

    method: str = Field(validation_alias=AliasPath("request", "method"))
    path: Annotated[str, AfterValidator(lambda uri: urlsplit(uri).path)] = Field(
        validation_alias=AliasPath("request", "uri")
    )
    request: _Bytes = Field(
        b"", validation_alias=AliasChoices(AliasPath("request", "body"), AliasPath("request", "parsed_body"))
    )
    request_headers: _Headers = Field(default={}, validation_alias=AliasPath("request", "headers"))
    status: int = Field(ge=100, le=999, validation_alias=AliasPath("response", "status", "code"))
    headers: _Headers = Field(default={}, validation_alias=AliasPath("response", "headers"))
    response: _Bytes = Field(
        validation_alias=AliasChoices(AliasPath("response", "body", "string"), AliasPath("response", "parsed_body"))
    )


class _Document(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")

    recorded_from: str
    settings: dict[str, str] = Field(default={})
    interactions: list[_Interaction]
    version: Literal[1]


def _other_version(document: Any, name: str) -> ToolError | None:
    """The refusal of a cassette that another version of mendgraph has written, or a later version of vcrpy."""
    number = None
    if isinstance(document, dict):
        number = document.get("version")

    if type(number) is not int or number == VERSION:
        return None

    versions = f"(format {number}, this one knows {VERSION})"
    if number > VERSION:
        return invalid(f"{name} was written by a newer mendgraph {versions}: update mendgraph, or {_REMEDY}")

    return _unreadable(name, f"was written by an older mendgraph {versions}")


def _is_foreign(document: Any) -> bool:
    """Whether another project has recorded the document: neither of our two lines is there."""
    if not isinstance(document, dict) or "interactions" not in document:
        return False
    return document.keys().isdisjoint({"recorded_from", "settings"})


def _cassette_of(document: Any) -> CassetteFile | str:
    """The cassette, or in words what is wrong with the document, and where."""
    try:
        parsed = _Document.model_validate(document)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        place = ".".join(map(str, first["loc"])) or "the top level"
        return f"is no cassette of version {VERSION}: {first['msg']} in {place}"

    exchanges = tuple(map(_exchange_of, parsed.interactions))
    return CassetteFile(recorded_from=parsed.recorded_from, settings=parsed.settings, exchanges=exchanges)


def _exchange_of(interaction: _Interaction) -> Exchange:
    """The exchange with the headers that a cassette keeps: another project may have kept all of them."""
    headers = only_headers(interaction.headers, RECORDED_HEADERS)
    request_headers = only_headers(interaction.request_headers, REQUEST_HEADERS)
    return Exchange(**{**interaction.model_dump(), "headers": headers, "request_headers": request_headers})


def _joined(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return ", ".join(map(str, value))
    return str(value)


def _unreadable(name: str, problem: str, remedy: str = f": {_REMEDY}") -> ToolError:
    return invalid(f"{name} {problem[:_LONGEST]}{remedy}")


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
        if _FOREIGN_BREAKS.search(text):
            style = '"'
        elif "\n" in text:
            style = "|"
        else:
            style = None

        return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)

    BlockDumper.add_representer(str, represent_text)
    return BlockDumper


def read_text(path: str, name: str = "") -> str | ToolError:
    """The text of the cassette file at `path`, which errors call `name`; NOT_FOUND where there is none."""
    name = name or path
    content = read_bytes(path, MOST_BYTES, name)

    if isinstance(content, ToolError):
        missing = content.code is ToolErrorCode.NOT_FOUND
        if missing:
            return content.model_copy(update={"message": f"there is no cassette {name}"})
        return content

    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        return _unreadable(name, f"is not UTF-8 text (line {line})")


def write(path: str, cassette: CassetteFile) -> ToolError | None:
    """Put the cassette at `path` in one step; its folder is made. Others see the old file or the whole new one."""
    try:
        os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
        write_whole(os.path.abspath(path), render(cassette).encode())
    except OSError as error:
        reason = error.strerror or type(error).__name__
        return ToolError(code=ToolErrorCode.IO_ERROR, message=f"{path} cannot be written: {reason}")

    return None


# --- Names

SUFFIX: Final = ".yaml"
LONGEST: Final = 120
"""Characters of a file's name; file systems allow 255 bytes, and a draft has more to its name."""

_CHOSEN: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_UNSAFE: Final = re.compile(r"[^A-Za-z0-9._-]+")
_HASH_DIGITS: Final = 8


def is_name(name: object) -> bool:
    """Whether a test may choose this name for its cassette: letters, digits, `.`, `_` and `-`, but no folder."""
    return isinstance(name, str) and _CHOSEN.fullmatch(name) is not None


def cassette_name(node_id: str, chosen: str = "") -> str:
    """The cassette of the test `node_id`, relative to the library and with "/"; `chosen` stands for the test's name.

    tests/test_calc.py::test_adds              tests/test_calc/test_adds.yaml
    tests/test_calc.py::TestBig::test_adds     tests/test_calc/TestBig.test_adds.yaml
    tests/test_calc.py::test_adds[one-two]     tests/test_calc/test_adds-one-two.yaml
    """
    module, _, test = node_id.partition("::")
    function, bracket, parameters = test.partition("[")
    name = chosen or _safe(function.replace("::", "."), exact=True)
    parameter = parameters.removesuffix("]")

    if bracket:
        # Some file systems do not tell capital letters from small ones, and parameters often differ in nothing else.
        name = f"{name}-{_safe(parameter, exact=parameter == parameter.lower())}"

    parts = [part for part in module.removesuffix(".py").replace("\\", "/").split("/") if part not in ("", ".", "..")]
    return f"{'/'.join(parts)}/{_bounded(name)}{SUFFIX}"


def _safe(text: str, *, exact: bool) -> str:
    """A part of a file's name; where something had to be replaced, a hash of the whole keeps names apart."""
    clean = _UNSAFE.sub("_", text)
    if exact and clean == text:
        return clean

    return f"{clean}-{_hash(text)}"


def _bounded(name: str) -> str:
    if len(name) <= LONGEST:
        return name
    return f"{name[: LONGEST - _HASH_DIGITS - 1]}-{_hash(name)}"


def _hash(text: str) -> str:
    return sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:_HASH_DIGITS]
