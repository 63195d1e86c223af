"""What a client is told at the door: its own answers, and the engine's where those would say too much or nothing."""

import json
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final

from mendgraph.graph.fleet.serving.request_body import Refused

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]
Why = Callable[[], Awaitable[dict[str, str] | None]]

_FAILED: Final = (
    "The server could not do this. Try again in a moment; the people who run it find the reason in its log."
)
_OURS: Final = frozenset({b"content-type", b"content-length"})
_SERVERS_FAULT: Final = 500


async def answer(refused: Refused, send: Send) -> None:
    """In the words of both: LangGraph's servers say `detail`, Aegra says `error` and `message`.

    Pages of other origins may read it, as they may read the engine's answers.
    """
    headers = [(b"access-control-allow-origin", b"*")]
    if refused.status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    said = {"error": "refused", "message": refused.detail, "detail": refused.detail}
    await send_json(refused.status, headers, said, send)


def masking(send: Send, why: Why | None = None) -> Send:
    """Hand on what the engine answers, but for two things.

    What it says of its own failures has statements and addresses of the database in it. And some versions answer {}
    where a run has no result; `why` says what LangGraph's servers say then.
    """
    start: MutableMapping[str, Any] | None = None
    over = False

    async def send_on(message: MutableMapping[str, Any]) -> None:
        nonlocal start, over
        if over:
            return
        if message["type"] == "http.response.start" and (message["status"] >= _SERVERS_FAULT or why is not None):
            start = message
            return
        if start is not None:
            held, start = start, None
            instead = await _instead(held["status"], message, why)
            if instead is not None:
                over = True
                headers = [each for each in held["headers"] if each[0].lower() not in _OURS]
                await send_json(held["status"], headers, instead, send)
                return
            await send(held)
        await send(message)

    return send_on


async def _instead(status: int, first: MutableMapping[str, Any], why: Why | None) -> dict[str, Any] | None:
    """What to answer, None for what the engine does."""
    if status >= _SERVERS_FAULT:
        return {"error": "failed", "message": _FAILED, "detail": _FAILED}
    if why is None or first.get("body") != b"{}" or first.get("more_body"):
        return None
    failure = await why()
    return None if failure is None else {"__error__": failure}


async def send_json(status: int, headers: list[tuple[bytes, bytes]], said: dict[str, Any], send: Send) -> None:
    """Send a whole answer."""
    body = json.dumps(said).encode()
    own = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": [*own, *headers]})
    await send({"type": "http.response.body", "body": body})
