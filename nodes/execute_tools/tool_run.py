"""What became of a call, and what each way of failing is called. Source: spec 5's error table."""

from dataclasses import dataclass, replace
from typing import Final

from mendgraph.nodes.execute_tools.registry import ToolOutput
from mendgraph.nodes.execute_tools.secrets.redact import PLACEHOLDER, redact
from mendgraph.nodes.execute_tools.secrets.shown_parts import first_words
from mendgraph.nodes.records import CallResult, ToolError, ToolErrorCode, ToolResult

LONGEST_REASON = 2_000
"""Characters of an exception's text that are kept."""


class RetryableToolError(RuntimeError):
    """A tool raises it when the same call may succeed on another attempt."""


class GuardrailError(RuntimeError):
    """A guardrail raises it to block a call or its output."""


@dataclass(frozen=True)
class Failure:
    """Why a call ended early: spec 5's error string, what the model is told, and the kind of error by its name."""

    error: str
    told: ToolError
    attempts: int = 0
    error_type: str = ""

    @property
    def reason(self) -> str:
        """What stands behind the kind in the error string."""
        return self.error.partition(":")[2]


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

    @classmethod
    def ended(cls, tool: str, failure: Failure, value: object = None) -> "ToolRun":
        """The run of a call that ended early. What its tool has already changed, as `value` says, stays on record."""
        done = value if isinstance(value, ToolOutput) else ToolOutput.failed(failure.told)
        output = replace(done, result=ToolResult(ok=False, error=failure.told))
        return cls("", tool, output, failure.error, failure.attempts, error_type=failure.error_type)


def unknown_tool(name: str, meant: tuple[str, ...], known: tuple[str, ...]) -> Failure:
    """No tool has this name; `meant` are the closest ones."""
    remedy = f"Did you mean {' or '.join(meant)}?" if meant else f"There are: {', '.join(known) or 'none'}."
    told = ToolError(
        code=ToolErrorCode.UNKNOWN_TOOL, message=f"There is no tool {name!r}. {remedy}", suggestions=meant or known
    )
    return Failure("unknown_tool", told, error_type="LookupError")


def bad_arguments(tool: str, reasons: list[str]) -> Failure:
    """The arguments do not fit the tool's schema."""
    text = "; ".join(reasons)
    told = ToolError(code=ToolErrorCode.INVALID_ARGUMENT, message=f"The arguments of {tool} do not fit: {text}.")
    return Failure(f"bad_args:{text}", told, error_type="ValueError")


def blocked(error: Exception, attempts: int) -> Failure:
    """A guardrail refused."""
    reason = reason_of(error)
    told = ToolError(code=ToolErrorCode.PERMISSION_DENIED, message=reason)
    return Failure(f"guardrail:{reason}", told, attempts, type(error).__name__)


def refused(message: str, code: ToolErrorCode, error_type: str) -> Failure:
    """The environment's policy refused the call before it was invoked."""
    return Failure(f"guardrail:{message}", ToolError(code=code, message=message), error_type=error_type)


def raised(tool: str, error: BaseException, attempts: int) -> Failure:
    """The tool raised: a ValueError is the caller's mistake, everything else the tool's.

    UNAVAILABLE where the exception says that an endpoint could not be reached or answered with a status of 5xx.
    """
    reason = reason_of(error)
    if isinstance(error, TimeoutError):
        message = f"{tool} took too long and was given up: ask for less at a time."
        return _failure("tool_error:timeout", ToolErrorCode.TIMEOUT, message, attempts, "TimeoutError")
    kind = type(error).__name__
    if isinstance(error, ValueError):
        return _failure(f"user_error:{reason}", ToolErrorCode.INVALID_ARGUMENT, reason, attempts, kind)
    message = f"{tool} failed: {kind}: {reason}"
    code = ToolErrorCode.UNAVAILABLE if _is_outage(error) else ToolErrorCode.IO_ERROR
    return _failure(f"tool_error:{reason}", code, message, attempts, kind)


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


def _failure(error: str, code: ToolErrorCode, message: str, attempts: int, error_type: str) -> Failure:
    return Failure(error, ToolError(code=code, message=message), attempts, error_type)
