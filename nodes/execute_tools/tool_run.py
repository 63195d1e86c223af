"""`ToolRun`, the outcome of a call: plain JSON values only, with one error string for each kind of failure.

Source: spec 5's error table and its normalising.
"""

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
    """A tool raises it when the same call may succeed on another attempt."""


class GuardrailError(RuntimeError):
    """A guardrail raises it to block a call or its output."""


@dataclass(frozen=True)
class ToolRun:
    """The outcome of a call.

    `error` is spec 5's string where the engine ended the call, "" where the tool returned, also with a typed failure;
    `error_type` names the exception behind it. `attempts` is 0 where the tool was not invoked; `ms` is
    wall time in milliseconds.
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
        """What the model is shown."""
        return self.output.result

    @property
    def reason(self) -> str:
        """The part of the error string after its kind."""
        return self.error.partition(":")[2]

    def as_record(self) -> CallResult:
        """The part of it that the state stores."""
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

    def after(self, output: ToolOutput) -> "ToolRun":
        """This failed run with the changes of a tool that returned this output: they stay on record."""
        return replace(self, output=replace(output, result=self.result))


def unknown_tool(name: str, names: Iterable[str]) -> ToolRun:
    """The run of a call of a tool that is not among these names."""
    similar, remedy = similar_or_all(name, names)
    error = ToolError(
        code=ToolErrorCode.UNKNOWN_TOOL, message=f"There is no tool {name!r}. {remedy}", suggestions=similar
    )

    return ToolRun("", name, ToolOutput.failed(error), "unknown_tool", error_type="LookupError")


def similar_or_all(name: str, names: Iterable[str]) -> tuple[tuple[str, ...], str]:
    """What to suggest for an unknown name: the similar ones of `names`, else all; and the sentence that says so."""
    names = sorted(names)
    similar = closest_names(name, names)
    if similar:
        return similar, f"Did you mean {' or '.join(similar)}?"

    return tuple(names), f"There are: {', '.join(names) or 'none'}."


def bad_arguments(tool: str, reasons: list[str]) -> ToolRun:
    """The arguments do not fit the tool's schema."""
    text = "; ".join(reasons)
    message = f"The arguments of {tool} do not fit: {text}."
    return _failed(tool, f"bad_args:{text}", ToolErrorCode.INVALID_ARGUMENT, message, error_type="ValueError")


def refused(tool: str, message: str, code: ToolErrorCode, error_type: str, attempts: int = 0) -> ToolRun:
    """The environment's policy, or a guardrail, refused the call."""
    return _failed(tool, f"guardrail:{message}", code, message, attempts, error_type)


def raised(tool: str, error: BaseException, attempts: int) -> ToolRun:
    """The tool raised: a ValueError is the caller's mistake, everything else the tool's.

    UNAVAILABLE where the exception says that an endpoint could not be reached or answered with a status of 5xx.
    """
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
) -> ToolRun:
    output = ToolOutput.failed(ToolError(code=code, message=message))
    return ToolRun("", tool, output, error, attempts, error_type=error_type)


def reason_of(error: BaseException) -> str:
    """What an exception says, without secrets, or its type where it says nothing.

    A text that is too long is cut between words; one that is a single word is not cut, as no part of a secret may be
    left: then its length is said.
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
    """The HTTP status of a response, or of an exception of an HTTP client; None where it has none."""
    response_fields: Any = answer if isinstance(answer, dict) else getattr(answer, "__dict__", {})
    inner = getattr(response_fields.get("response"), "__dict__", {})

    for holder in (response_fields, inner):
        for name in ("status_code", "status", "code"):
            code = holder.get(name)
            if isinstance(code, int) and 100 <= code < 600:
                return int(code)

    return None


def _is_outage(error: BaseException) -> bool:
    """Whether a client of the network raised it because the other side is down; a status of 4xx is an answer."""
    status = http_status(error)
    kinds = (*type(error).__mro__, *type(vars(error).get("reason")).__mro__)
    if status is not None:
        return status >= 500

    return any(kind.__name__ in _NO_ANSWER for kind in kinds)


_NO_ANSWER: Final = frozenset({
    "ConnectionError", "gaierror", "TimeoutError", "NetworkError", "TimeoutException", "Timeout",
    "ClientConnectionError",
})  # fmt: skip
"""Exceptions for an endpoint that cannot be reached: Python's (and requests'), httpx's two, requests', aiohttp's."""


def plain_output(value: object) -> ToolOutput:
    """The tool's output as JSON would return it, with tuples as lists.

    A function of a user may return an envelope, an error, a map, a pydantic model or a dataclass,
    or one value: None becomes "null", bytes their length. Source: spec 5's normalising.

    Raises:
        TypeError: the value has no JSON form (so have integers beyond 64 bits, and text with lone surrogates).
    """
    output = _as_output(value)
    if not is_usable(output):
        raise TypeError("a field of its ToolOutput is of the wrong type")
    if output.result.error is not None:
        return output

    data = orjson.loads(orjson.dumps(output.result.data, default=lambda inner: inner.model_dump(mode="json")))
    return replace(output, result=ToolResult(ok=output.result.ok, data=data))


def is_usable(output: ToolOutput) -> bool:
    """Whether every field of this output is of its type, so that it may enter the state."""
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
"""The most characters of a string and items of a list, tried in this order until the result fits."""

Keep = Callable[[str], str | None]
"""(text) -> the reference under which `read_file` gives it from now on, or None where it could not be kept."""


def clip(result: ToolResult, keep: Keep | None = None) -> ToolResult:
    """The result itself if its data is at most `LARGEST_RESULT` bytes of JSON, else one that is.

    Strings and lists keep their head and tail; `clipped` names what was left out, and where. With `keep`, the full
    result is stored: a single text that was too long as it is, anything else as JSON; and `clipped` says how to read
    it.
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
        # The text that was cut, where it is the only one, as it is; else the fields of the result below each other.
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
