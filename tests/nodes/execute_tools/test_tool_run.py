from email.message import Message
from http import HTTPStatus
from urllib.error import HTTPError, URLError

import httpx2
import pytest

from mendgraph.nodes.execute_tools.tool_run import (
    LONGEST_REASON,
    GuardrailError,
    RetryableToolError,
    ToolRun,
    bad_arguments,
    blocked,
    raised,
    reason_of,
    unknown_tool,
)
from mendgraph.nodes.records import ToolErrorCode


class UnspeakableError(Exception):
    def __str__(self) -> str:
        raise ZeroDivisionError


@pytest.mark.parametrize(
    ("failure", "error", "code", "message"),
    [
        (
            unknown_tool("raed", ("list", "read")),
            "unknown_tool",
            ToolErrorCode.UNKNOWN_TOOL,
            "There is no tool 'raed'. Did you mean read?",
        ),
        (
            unknown_tool("zzz", ("list", "read")),
            "unknown_tool",
            ToolErrorCode.UNKNOWN_TOOL,
            "There is no tool 'zzz'. There are: list, read.",
        ),
        (
            bad_arguments("t", ["path: field required", "x: wrong"]),
            "bad_args:path: field required; x: wrong",
            ToolErrorCode.INVALID_ARGUMENT,
            "The arguments of t do not fit: path: field required; x: wrong.",
        ),
        (blocked("t", GuardrailError("no"), 0), "guardrail:no", ToolErrorCode.PERMISSION_DENIED, "no"),
        (raised("t", ValueError("bad"), 1), "user_error:bad", ToolErrorCode.INVALID_ARGUMENT, "bad"),
        (
            raised("t", RetryableToolError("again"), 2),
            "tool_error:again",
            ToolErrorCode.IO_ERROR,
            "t failed: RetryableToolError: again",
        ),
        (
            raised("t", TimeoutError(), 1),
            "tool_error:timeout",
            ToolErrorCode.TIMEOUT,
            "t took too long and was given up: ask for less at a time.",
        ),
        (
            raised("t", ZeroDivisionError(), 1),
            "tool_error:ZeroDivisionError",
            ToolErrorCode.IO_ERROR,
            "t failed: ZeroDivisionError: ZeroDivisionError",
        ),
        (raised("t", SystemExit(3), 1), "tool_error:3", ToolErrorCode.IO_ERROR, "t failed: SystemExit: 3"),
        (
            raised("t", ConnectionRefusedError(111, "refused"), 1),
            "tool_error:[Errno 111] refused",
            ToolErrorCode.UNAVAILABLE,
            "t failed: ConnectionRefusedError: [Errno 111] refused",
        ),
    ],
)
def test_the_error_table(failure: ToolRun, error: str, code: ToolErrorCode, message: str) -> None:
    told = failure.result.error
    assert told is not None
    assert (failure.error, told.code, told.message) == (error, code, message)


def with_code(code: int) -> Exception:
    """What a client raises that has codes of its own, such as that of a database."""
    error = RuntimeError("it failed")
    vars(error)["code"] = code
    return error


REQUEST = httpx2.Request("GET", "http://a.example")


def code_of(run: ToolRun) -> ToolErrorCode | None:
    return None if run.result.error is None else run.result.error.code


@pytest.mark.parametrize(
    ("error", "outage"),
    [
        (httpx2.ConnectError("refused"), True),
        (httpx2.HTTPStatusError("down", request=REQUEST, response=httpx2.Response(503)), True),
        (httpx2.HTTPStatusError("gone", request=REQUEST, response=httpx2.Response(404)), False),
        (httpx2.UnsupportedProtocol("no such protocol"), False),
        (URLError(ConnectionResetError("reset")), True),
        (HTTPError("http://a.example", 502, "bad gateway", Message(), None), True),
        (FileNotFoundError(2, "no such file"), False),
        (with_code(HTTPStatus.BAD_GATEWAY), True),
        (with_code(1062), False),
    ],
)
def test_an_endpoint_that_is_down_is_unavailable(error: BaseException, outage: bool) -> None:
    assert (code_of(raised("t", error, 1)) is ToolErrorCode.UNAVAILABLE) is outage


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (RuntimeError("x"), "x"),
        (RuntimeError(), "RuntimeError"),
        (UnspeakableError(), "UnspeakableError"),
        (RuntimeError("key sk-abcdefghijkl1234mnop"), "key ***"),
        (RuntimeError("xyz " * 10_000), "xyz " * (LONGEST_REASON // 4)),
        (
            RuntimeError("x" * 10_000),
            "RuntimeError (its text is one word of 10000 characters, too long to be shown)",
        ),
        (RuntimeError("a " * 995 + "key sk-abcdefghijkl1234mnop " + "b " * 9), "a " * 995 + "key ***"),
        (RuntimeError("a " * 995 + "quokka-4471-lantern-88"), "a " * 995),
    ],
)
def test_a_reason_is_short_without_secrets_and_never_empty(error: BaseException, reason: str) -> None:
    assert reason_of(error) == reason


def test_an_interrupt_is_no_reason() -> None:
    class Interrupted(Exception):  # noqa: N818 - it is none
        def __str__(self) -> str:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        reason_of(Interrupted())
