"""What became of a call: one shape that holds plain JSON values only, and what each way of failing is called.

Source: spec 5's error table and its normalising.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any, Final

import orjson
from pydantic import BaseModel

from mendgraph.nodes.execute_tools.registry import ToolOutput
from mendgraph.nodes.execute_tools.secrets.redact import PLACEHOLDER, redact
from mendgraph.nodes.execute_tools.secrets.shown_parts import first_words
from mendgraph.nodes.language.names import LARGEST_NUMBER, reference_of
from mendgraph.nodes.records import CallResult, FileChange, JsonMap, Plan, ToolError, ToolErrorCode, ToolResult

LONGEST_REASON = 2_000
"""Characters of an exception's text that are kept."""


class RetryableToolError(RuntimeError):
    """A tool raises it when the same call may succeed on another attempt."""


class GuardrailError(RuntimeError):
    """A guardrail raises it to block a call or its output."""


@dataclass(frozen=True)
class ToolRun:
    """What became of a call.

    `error` is spec 5's string where the engine ended the call, "" where the tool came back by itself, be it with a
    typed failure; `error_type` names the exception behind it. `attempts` is 0 where the tool was not invoked; `ms` is
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
    def retries(self) -> int:
        """How many attempts came after the first."""
        return max(0, self.attempts - 1)

    @property
    def result(self) -> ToolResult:
        """What the model is shown."""
        return self.output.result

    @property
    def reason(self) -> str:
        """What stands behind the kind in the error string."""
        return self.error.partition(":")[2]

    def as_record(self) -> CallResult:
        """The part of it that is kept in the state."""
        return CallResult(
            call_id=self.call_id,
            tool=self.tool,
            result=self.result,
            changes=self.output.changes,
            ms=self.ms,
            attempts=self.attempts,
        )

    def after(self, output: ToolOutput) -> "ToolRun":
        """The failed run of a tool that has given this output: what it has changed stays on record."""
        return replace(self, output=replace(output, result=self.result))


def unknown_tool(name: str, meant: tuple[str, ...], known: tuple[str, ...]) -> ToolRun:
    """No tool has this name; `meant` are the closest ones."""
    remedy = f"Did you mean {' or '.join(meant)}?" if meant else f"There are: {', '.join(known) or 'none'}."
    told = ToolError(
        code=ToolErrorCode.UNKNOWN_TOOL, message=f"There is no tool {name!r}. {remedy}", suggestions=meant or known
    )
    return ToolRun("", name, ToolOutput.failed(told), "unknown_tool", error_type="LookupError")


def bad_arguments(tool: str, reasons: list[str]) -> ToolRun:
    """The arguments do not fit the tool's schema."""
    text = "; ".join(reasons)
    message = f"The arguments of {tool} do not fit: {text}."
    return _failed(tool, f"bad_args:{text}", ToolErrorCode.INVALID_ARGUMENT, message, error_type="ValueError")


def blocked(tool: str, error: Exception, attempts: int) -> ToolRun:
    """A guardrail refused."""
    reason, kind = reason_of(error), type(error).__name__
    return _failed(tool, f"guardrail:{reason}", ToolErrorCode.PERMISSION_DENIED, reason, attempts, kind)


def refused(tool: str, message: str, code: ToolErrorCode, error_type: str) -> ToolRun:
    """The environment's policy refused the call before it was invoked."""
    return _failed(tool, f"guardrail:{message}", code, message, error_type=error_type)


def raised(tool: str, error: BaseException, attempts: int) -> ToolRun:
    """The tool raised: a ValueError is the caller's mistake, everything else the tool's.

    UNAVAILABLE where the exception says that an endpoint could not be reached or answered with a status of 5xx.
    """
    reason, kind = reason_of(error), type(error).__name__
    if isinstance(error, TimeoutError):
        message = f"{tool} took too long and was given up: ask for less at a time."
        return _failed(tool, "tool_error:timeout", ToolErrorCode.TIMEOUT, message, attempts, "TimeoutError")
    if isinstance(error, ValueError):
        return _failed(tool, f"user_error:{reason}", ToolErrorCode.INVALID_ARGUMENT, reason, attempts, kind)
    code = ToolErrorCode.UNAVAILABLE if _is_outage(error) else ToolErrorCode.IO_ERROR
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
    except KeyboardInterrupt:
        raise
    except BaseException:  # noqa: BLE001 - an exception whose text fails is still an exception
        return kind
    shown = str(redact(first_words(text, LONGEST_REASON, PLACEHOLDER)))
    if shown or not text:
        return shown or kind
    return f"{kind} (its text is one word of {len(text)} characters, too long to be shown)"


def http_status(answer: object) -> int | None:
    """The HTTP status that an answer carries, or an exception of a client of the network; None where there is none."""
    try:
        said = answer if isinstance(answer, dict) else getattr(answer, "__dict__", {})
        parts = (said, getattr(said.get("response"), "__dict__", {}))
        found = (part.get(name) for part in parts for name in _STATUSES)
        return next((int(each) for each in found if isinstance(each, int) and each in _STATUS), None)
    except KeyboardInterrupt:
        raise
    except BaseException:  # noqa: BLE001 - an answer may fight back in any way
        return None


def _is_outage(error: BaseException) -> bool:
    """Whether a client of the network raised it because the other side is down; a status of 4xx is an answer."""
    status = http_status(error)
    if status is not None:
        return status >= 500
    kinds = (*type(error).__mro__, *type(vars(error).get("reason")).__mro__)
    return any(kind.__name__ in _NO_ANSWER for kind in kinds)


_STATUSES: Final = ("status_code", "status", "code")
"""Where exceptions, or the answers that they carry, have their HTTP status: httpx and requests, aiohttp, urllib."""
_STATUS: Final = range(100, 600)
"""Any other number there is a code of the caller's own, such as that of a database."""

_NO_ANSWER: Final = frozenset(
    {
        *("ConnectionError", "gaierror", "TimeoutError"),
        *("NetworkError", "TimeoutException", "Timeout", "ClientConnectionError"),
    }
)
"""Exceptions for an endpoint that cannot be reached: Python's (and requests'), httpx's two, requests', aiohttp's."""


def plain_output(value: object) -> ToolOutput:
    """The tool's output with tuples as lists, and so on, as it would come back from JSON.

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
    data = orjson.loads(orjson.dumps(output.result.data, default=_as_json))
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
    return ToolOutput(ToolResult(ok=True, data=_as_map(value)))


def _as_map(value: object) -> dict[str, Any]:
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    if is_dataclass(value) and not isinstance(value, type):
        return {each.name: getattr(value, each.name) for each in fields(value)}
    if value is None:
        return {"value": "null"}
    if isinstance(value, bytes | bytearray):
        return {"value": {"type": "bytes", "len": len(value)}}
    return {"value": value}


def _as_json(value: object) -> Any:
    """What stands inside of a result and is no JSON value, but has one."""
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    raise TypeError(f"Type is not JSON serializable: {type(value).__name__}")


LARGEST_RESULT: Final = 65_536
"""Bytes of JSON, about 16,000 tokens."""

LONGEST_MESSAGE: Final = 4_000
MOST_SUGGESTIONS: Final = 20

LONGEST_LINE: Final = 2_000
"""Characters after which a line of a kept text is folded: what stands behind them no page of it would show."""

_STEPS: Final = ((16_384, 1_000), (4_096, 200), (1_024, 50), (256, 20))
"""The most characters of a string and items of a list, tried in this order until the result fits."""

Keep = Callable[[str], str | None]
"""(text) -> the reference under which `read_file` gives it from now on, or None where it could not be kept."""


def clip(result: ToolResult, largest: int = LARGEST_RESULT, keep: Keep | None = None) -> ToolResult:
    """The result itself if its data is at most `largest` bytes of JSON, else one that is.

    Strings and lists keep their head and tail; `clipped` names what was left out, and where. With `keep`, each of them
    is kept whole, a list with one item on a line, and `clipped` says how to read it.
    """
    if result.error is not None:
        return ToolResult(ok=False, error=_clip_error(result.error))
    if _size(result.data) <= largest:
        return result
    for characters, items in _STEPS:
        clipping = _Clipping(characters, items)
        data = clipping.clip(result.data, "")
        cuts = clipping.cuts[:MOST_SUGGESTIONS]
        # Nothing is kept before it is clear that the notes fit, too.
        if _size({**data, "clipped": [cut.longest_note if keep else cut.message for cut in cuts]}) <= largest:
            return ToolResult(ok=True, data={**data, "clipped": [cut.note(keep) for cut in cuts]})
    message = f"the whole result ({_size(result.data)} bytes of JSON) was left out"
    note = _Cut(message, result.data).note(keep) if keep else f"{message}; ask for less at a time"
    return ToolResult(ok=True, data={"clipped": [note]})


@dataclass(frozen=True)
class _Cut:
    """What lost its middle, and what to say of it; `whole` is None where it is kept as a part of something else."""

    message: str
    whole: str | list[Any] | JsonMap | None

    @property
    def longest_note(self) -> str:
        return self.message if self.whole is None else _with_reference(self.message, _LONGEST_REFERENCE, folded=True)

    def note(self, keep: Keep | None) -> str:
        if keep is None or self.whole is None:
            return self.message
        whole = _as_text(self.whole)
        text = _folded(whole)
        reference = keep(text)
        if reference is None:
            return f"{self.message}, and it could not be kept"
        return _with_reference(self.message, reference, folded=text != whole)


_LONGEST_REFERENCE: Final = reference_of(LARGEST_NUMBER)


def _with_reference(message: str, reference: str, *, folded: bool) -> str:
    how = ", long lines folded" if folded else ""
    return f'{message}; all of it{how}: read_file path="{reference}"'


def _as_text(value: str | list[Any] | JsonMap) -> str:
    """A text as it is, a list with one item on a line, the fields of a result below each other."""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return "".join(f"{orjson.dumps(item).decode()}\n" for item in value)
    return orjson.dumps(value, option=orjson.OPT_INDENT_2).decode()


def _folded(text: str) -> str:
    lines = text.split("\n")
    if max(map(len, lines)) <= LONGEST_LINE:
        return text
    starts = ((line, range(0, max(1, len(line)), LONGEST_LINE)) for line in lines)
    return "\n".join(line[start : start + LONGEST_LINE] for line, each in starts for start in each)


@dataclass
class _Clipping:
    """One try to make a value smaller: strings of at most `characters`, lists of at most `items`."""

    characters: int
    items: int
    cuts: list[_Cut] = field(default_factory=list)

    def clip(self, value: Any, where: str, *, kept: bool = False) -> Any:
        """The smaller value. `kept` says that it is in a list that lost items, and so is kept with it."""
        if isinstance(value, str) and len(value) > self.characters:
            left_out = f"{len(value) - self.characters} of {len(value)} characters left out"
            self.cuts.append(_Cut(f"{where}: {left_out}", None if kept else value))
            return _head_and_tail(value, self.characters)
        if isinstance(value, list):
            return self._clip_list(value, where, kept=kept)
        if isinstance(value, dict):
            return {key: self.clip(each, f"{where}.{key}" if where else key, kept=kept) for key, each in value.items()}
        return value

    def _clip_list(self, value: list[Any], where: str, *, kept: bool) -> list[Any]:
        shown = value
        if len(value) > self.items:
            tail = self.items // 2
            head = self.items - tail
            left_out = f"{len(value) - self.items} of {len(value)} items left out after item {head}"
            self.cuts.append(_Cut(f"{where}: {left_out}", None if kept else value))
            shown, kept = [*value[:head], *value[-tail:]], True
        return [self.clip(each, f"{where}[{index}]", kept=kept) for index, each in enumerate(shown)]


def _size(data: JsonMap) -> int:
    return len(orjson.dumps(data))


def _clip_error(error: ToolError) -> ToolError:
    message = _head_and_tail(error.message, LONGEST_MESSAGE)
    return error.model_copy(update={"message": message, "suggestions": error.suggestions[:MOST_SUGGESTIONS]})


def _head_and_tail(text: str, characters: int) -> str:
    if len(text) <= characters:
        return text
    tail = characters // 2
    return f"{text[: characters - tail]}\n[... {len(text) - characters} characters left out ...]\n{text[-tail:]}"
