"""What the door hands on of an engine's answers, and what it says instead."""

import asyncio
import json
from typing import Any

import pytest

from mendgraph.graph.fleet.serving.door_answers import Why, masking

LEAK = b'{"message": "connection to db.internal failed [SQL: INSERT INTO runs]"}'
FAILED = "The server could not do this. Try again in a moment; the people who run it find the reason in its log."
PLAIN = [(b"content-type", b"text/plain"), (b"content-length", b"70"), (b"x-request-id", b"1")]


def told(status: int, *bodies: bytes, why: Why | None = None) -> list[Any]:
    """What reaches the client of this answer."""
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def play() -> None:
        its = masking(send, why)
        await its({"type": "http.response.start", "status": status, "headers": PLAIN})
        for body in bodies:
            await its({"type": "http.response.body", "body": body, "more_body": body is not bodies[-1]})

    asyncio.run(play())
    return sent


async def lost() -> dict[str, str] | None:
    return {"error": "run_error", "message": "The server is gone."}


async def nothing() -> dict[str, str] | None:
    return None


@pytest.mark.parametrize("status", [500, 503])
def test_a_failure_tells_nothing_of_the_database(status: int) -> None:
    start, body = told(status, LEAK[:20], LEAK[20:])
    assert (start["status"], json.loads(body["body"])["message"]) == (status, FAILED)
    assert (b"x-request-id", b"1") in start["headers"]
    assert dict(start["headers"])[b"content-length"] == str(len(body["body"])).encode()
    assert dict(start["headers"])[b"content-type"] == b"application/json"


@pytest.mark.parametrize(
    ("status", "bodies", "why"),
    [
        (200, (b"a", b"b"), None),
        (404, (LEAK,), lost),
        (200, (b"{}",), None),
        (200, (b"{}",), nothing),
        (200, (b'{"a": 1}',), lost),
        (200, (b"{}", b" "), lost),
    ],
)
def test_other_answers_are_handed_on(status: int, bodies: tuple[bytes, ...], why: Why | None) -> None:
    start, *rest = told(status, *bodies, why=why)
    assert start == {"type": "http.response.start", "status": status, "headers": PLAIN}
    assert [each["body"] for each in rest] == [*bodies]


def test_a_run_without_a_result_says_why() -> None:
    start, body = told(200, b"{}", why=lost)
    assert start["status"] == 200
    assert json.loads(body["body"]) == {"__error__": {"error": "run_error", "message": "The server is gone."}}
