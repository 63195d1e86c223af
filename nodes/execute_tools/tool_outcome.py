"""The outcome of a call as plain JSON values, with spec 5's error string for each kind of failure."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, Final

import orjson
from pydantic import BaseModel

from mendgraph.nodes.execute_tools.registry import ToolOutput
from mendgraph.nodes.execute_tools.secrets.redact import PLACEHOLDER, redact
from mendgraph.nodes.execute_tools.secrets.text_parts import first_words
from mendgraph.nodes.language.names import closest_names
from mendgraph.nodes.records import CallResult, FileChange, Plan, ToolError, ToolErrorCode, ToolResult

LONGEST_REASON = 2_000  # characters of an exception's text that are kept


class RetryableToolError(RuntimeError):
    """Raised by a tool if the same call may succeed on another attempt."""


class GuardrailError(RuntimeError):
    """Raised by a guardrail to block a call or its output."""


@dataclass(frozen=True)
class ToolOutcome:
    """The outcome of a call.

    `error` is spec 5's string if the engine ended the call, and "" if the tool returned, even with a typed error;
    `error_type` is the name of the exception. `attempts` is 0 if the tool was not invoked; `ms` is wall time.
    """

    call_id: str
    tool: str
    output: ToolOutput
    error: str = ""
    attempts: int = 0
    cached: bool = False
    ms: int = 0
    error_type: str = ""

    @property
    def result(self) -> ToolResult:
        """The result for the model."""
        return self.output.result

    @property
    def reason(self) -> str:
        """The part of the error string after its kind."""
        return self.error.partition(":")[2]

    def as_record(self) -> CallResult:
        """Return the part of the outcome that the state stores."""
        return CallResult(
            call_id=self.call_id,
            tool=self.tool,
            result=self.result,
            changes=self.output.changes,
            ms=self.ms,
            attempts=self.attempts,
            blocks=self.output.blocks,
            artifact=self.output.artifact,
        )

    def after(self, output: ToolOutput) -> "ToolOutcome":
        """Return this failure with the changes in `output`, which the tool has made."""
        return replace(self, output=replace(output, result=self.result))


def unknown_tool(name: str, names: Iterable[str]) -> ToolOutcome:
    """Return the outcome of a call of an unknown tool; `names` are the known ones."""
    similar, remedy = similar_or_all(name, names)
    error = ToolError(
        code=ToolErrorCode.UNKNOWN_TOOL, message=f"There is no tool {name!r}. {remedy}", suggestions=similar
    )

    return ToolOutcome("", name, ToolOutput.failed(error), "unknown_tool", error_type="LookupError")


def similar_or_all(name: str, names: Iterable[str]) -> tuple[tuple[str, ...], str]:
    """Return the similar ones of `names`, or all, and a sentence that suggests them."""
    names = sorted(names)
    similar = closest_names(name, names)
    if similar:
        return similar, f"Did you mean {' or '.join(similar)}?"

    return tuple(names), f"There are: {', '.join(names) or 'none'}."


def bad_arguments(tool: str, reasons: list[str]) -> ToolOutcome:
    """Return the outcome of a call whose arguments do not fit the schema."""
    text = "; ".join(reasons)
    message = f"The arguments of {tool} do not fit: {text}."
    return _failed(tool, f"bad_args:{text}", ToolErrorCode.INVALID_ARGUMENT, message, error_type="ValueError")


def refused(tool: str, message: str, code: ToolErrorCode, error_type: str, attempts: int = 0) -> ToolOutcome:
    """Return the outcome of a call that the policy or a guardrail refused."""
    return _failed(tool, f"guardrail:{message}", code, message, attempts, error_type)


def raised(tool: str, error: BaseException, attempts: int) -> ToolOutcome:
    """Return the outcome of a call that raised: a ValueError is the caller's mistake, all others are the tool's."""
    reason = reason_of(error)
    kind = type(error).__name__
    if isinstance(error, TimeoutError):
        message = f"{tool} took too long and was given up: ask for less at a time."
        return _failed(tool, "tool_error:timeout", ToolErrorCode.TIMEOUT, message, attempts, "TimeoutError")

    if isinstance(error, ValueError):
        return _failed(tool, f"user_error:{reason}", ToolErrorCode.INVALID_ARGUMENT, reason, attempts, kind)

    if _is_outage(error):
        code = ToolErrorCode.UNAVAILABLE
    else:
        code = ToolErrorCode.IO_ERROR

    return _failed(tool, f"tool_error:{reason}", code, f"{tool} failed: {kind}: {reason}", attempts, kind)


def _failed(
    tool: str, error: str, code: ToolErrorCode, message: str, attempts: int = 0, error_type: str = ""
) -> ToolOutcome:
    output = ToolOutput.failed(ToolError(code=code, message=message))
    return ToolOutcome("", tool, output, error, attempts, error_type=error_type)


def reason_of(error: BaseException) -> str:
    """Return the text of an exception without secrets, or its type if it has none.

    A long text is cut between words. A long single word is omitted, since a part of it could be a part of a secret.
    """
    kind = type(error).__name__
    try:
        text = str.__str__(str(error))
    except Exception:  # noqa: BLE001 - an exception whose text fails is still an exception
        return kind

    reason = str(redact(first_words(text, LONGEST_REASON, PLACEHOLDER)))
    if reason or not text:
        return reason or kind

    return f"{kind} (its text is one word of {len(text)} characters, too long to be shown)"


def http_status(answer: object) -> int | None:
    """Return the HTTP status of a response or of an HTTP client's exception, or None."""
    response_fields: Any = answer if isinstance(answer, dict) else getattr(answer, "__dict__", {})
    inner = getattr(response_fields.get("response"), "__dict__", {})

    for holder in (response_fields, inner):
        for name in ("status_code", "status", "code"):
            code = holder.get(name)
            if isinstance(code, int) and 100 <= code < 600:
                return int(code)

    return None


def _is_outage(error: BaseException) -> bool:
    """Return whether a network client raised it because the server is down; a status of 4xx is an answer."""
    status = http_status(error)
    kinds = (*type(error).__mro__, *type(vars(error).get("reason")).__mro__)
    if status is not None:
        return status >= 500

    return any(kind.__name__ in _NO_ANSWER for kind in kinds)


_NO_ANSWER: Final = frozenset({
    "ConnectionError", "gaierror", "TimeoutError", "NetworkError", "TimeoutException", "Timeout",
    "ClientConnectionError",
})  # fmt: skip
"""Exceptions of Python, requests, httpx and aiohttp for a server that cannot be reached."""


def plain_output(value: object) -> ToolOutput:
    """Return the value of a tool as an output of JSON values.

    A tool may return an output, a result, an error, a mapping, a pydantic model, a dataclass or a single value; None
    becomes "null", bytes their length. Source: spec 5's normalising.

    Raises:
        TypeError: the value has no JSON form, such as integers beyond 64 bits and text with lone surrogates.
    """
    output = _as_output(value)
    if not is_usable(output):
        raise TypeError("a field of its ToolOutput is of the wrong type")
    if output.result.error is not None:
        return output

    data = orjson.loads(orjson.dumps(output.result.data, default=lambda inner: inner.model_dump(mode="json")))
    return replace(output, result=ToolResult(ok=output.result.ok, data=data))


def is_usable(output: ToolOutput) -> bool:
    """Return whether every field of the output has its type, so that it may enter the state."""
    return (
        isinstance(output.result, ToolResult)
        and isinstance(output.changes, tuple)
        and all(isinstance(change, FileChange) for change in output.changes)
        and isinstance(output.files_read, Mapping)
        and all(isinstance(text, str) for entry in output.files_read.items() for text in entry)
        and isinstance(output.plan, Plan | None)
    )


def _as_output(value: object) -> ToolOutput:
    if isinstance(value, ToolOutput):
        return value
    if isinstance(value, ToolResult):
        return ToolOutput(value)
    if isinstance(value, ToolError):
        return ToolOutput.failed(value)

    if isinstance(value, BaseModel):
        value = value.model_dump(mode="json")
    elif is_dataclass(value) and not isinstance(value, type):
        value = {field.name: getattr(value, field.name) for field in fields(value)}
    elif isinstance(value, Mapping):
        value = dict(value)
    elif value is None:
        value = "null"
    elif isinstance(value, bytes | bytearray):
        value = {"value": {"type": "bytes", "len": len(value)}}

    data = value if isinstance(value, dict) else {"value": value}
    return ToolOutput(ToolResult(ok=True, data=data))


LARGEST_RESULT: Final = 65_536  # bytes of JSON, about 16,000 tokens
LONGEST_MESSAGE: Final = 4_000
MOST_SUGGESTIONS: Final = 20
_STEPS: Final = ((16_384, 1_000), (4_096, 200), (1_024, 50), (256, 20), (256, 1))
"""The most characters of a string and items of a list, tried in this order."""

Keep = Callable[[str], str | None]
"""Stores a text and returns the reference for `read_file`, or None if it could not be stored."""


def clip(result: ToolResult, keep: Keep | None = None) -> ToolResult:
    """Return the result, shortened to at most `LARGEST_RESULT` bytes of JSON.

    Strings and lists keep their head and tail; `clipped` lists what was left out. With `keep`, the full result is
    stored (a single long text as it is, otherwise JSON), and `clipped` says how to read it.
    """
    if result.error is not None:
        message = _head_and_tail(result.error.message, LONGEST_MESSAGE)
        update = {"message": message, "suggestions": result.error.suggestions[:MOST_SUGGESTIONS]}
        return ToolResult(ok=False, error=result.error.model_copy(update=update))

    size = len(orjson.dumps(result.data))
    if size <= LARGEST_RESULT:
        return result

    data = {}
    cuts = [f"the whole result ({size} bytes of JSON) was left out; ask for less at a time"]

    for characters, items in _STEPS:
        lines: list[str] = []
        smaller = _clipped(result.data, "", characters, items, lines)

        if len(orjson.dumps({**smaller, "clipped": lines[:MOST_SUGGESTIONS]})) <= LARGEST_RESULT - _ROOM:
            data = smaller
            cuts = lines[:MOST_SUGGESTIONS]
            break

    if keep is not None:
        # A single long text is stored as it is, otherwise all fields as JSON.
        text = None
        if len(cuts) == 1:
            text = result.data.get(cuts[0].partition(":")[0])

        if isinstance(text, str):
            rendered = text
        else:
            rendered = orjson.dumps(result.data, option=orjson.OPT_INDENT_2).decode()

        reference = keep(rendered)
        if reference is None:
            cuts.append("it could not be kept")
        else:
            cuts.append(f'all of it: read_file path="{reference}"')

    return ToolResult(ok=True, data={**data, "clipped": cuts})


_ROOM: Final = 200  # bytes for the note that says where all of it is kept


def _clipped(value: Any, where: str, characters: int, items: int, cuts: list[str]) -> Any:
    if isinstance(value, str) and len(value) > characters:
        cuts.append(f"{where}: {len(value) - characters} of {len(value)} characters left out")
        return _head_and_tail(value, characters)

    if isinstance(value, dict):
        inner = f"{where}." if where else ""
        return {key: _clipped(item, f"{inner}{key}", characters, items, cuts) for key, item in value.items()}

    if not isinstance(value, list):
        return value

    if len(value) > items:
        head = items - items // 2
        cuts.append(f"{where}: {len(value) - items} of {len(value)} items left out after item {head}")
        value = [*value[:head], *value[len(value) - items // 2 :]]

    return [_clipped(item, f"{where}[{index}]", characters, items, cuts) for index, item in enumerate(value)]


def _head_and_tail(text: str, characters: int) -> str:
    if len(text) <= characters:
        return text

    tail = characters // 2
    return f"{text[: characters - tail]}\n[... {len(text) - characters} characters left out ...]\n{text[-tail:]}"
