"""ASGI middleware in front of an engine: every request of a user comes through here, or not at all."""

import asyncio
import json
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, MutableMapping, Sequence
from typing import Any, Final, Protocol

from mendgraph.graph.fleet.serving.authentication import token_of
from mendgraph.graph.fleet.serving.request_guard import App, Receive, Scope, Send, send_json
from mendgraph.graph.fleet.serving.request_rules import MOST_BYTES, OPEN_PATHS, Asked, Refused, read_body, read_route
from mendgraph.graph.fleet.serving.tenants import Tenant, Tenants
from mendgraph.graph.machine.redaction import CurrentRedactor

LOOK_EVERY_S: Final = 0.5
"""How often it is looked whether a run of another server is over, for those who follow it here."""

MOST_OPEN: Final = 32
"""Requests that one user may have open at one server, streams among them."""


class Threads(Protocol):
    """What the engine knows of threads."""

    async def owner(self, thread: str) -> str | None:
        """Whose thread this is, "" for nobody's any more, None where there is none."""

    async def is_busy(self, thread: str) -> bool:
        """Whether a run of this thread is at work; those of servers that are gone have been ended before."""

    async def is_elsewhere(self, thread: str, run: str) -> bool:
        """Whether this run is at work on another server that is there."""

    async def failure(self, thread: str, run: str) -> dict[str, str] | None:
        """Why this run, or the thread's last one, has no result: `error` and `message`. None where it has one."""


class TenantMiddleware:
    """An ASGI application in front of another one."""

    def __init__(self, app: App, tenants: Tenants, threads: Threads, secrets: Sequence[str] = ()) -> None:
        """`secrets` are values that are never stored, beside those of the environment."""
        self._app, self._tenants, self._threads = app, tenants, threads
        self._redactor = CurrentRedactor(secrets)
        self._open: Counter[str] = Counter()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request in, or answer it here."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
        elif scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
        elif _is_open(scope):
            await self._app(scope, receive, masking(send))
        else:
            await self._for_user(scope, receive, send)

    async def _for_user(self, scope: Scope, receive: Receive, send: Send) -> None:
        tokens = [value for name, value in scope["headers"] if name.lower() == b"authorization"]
        tenant = self._tenants.of_token(token_of({"authorization": tokens[0]})) if len(tokens) == 1 else None
        if tenant is None:
            await answer(Refused(401, "Send the header Authorization: Bearer <token>."), send)
            return
        if self._open[tenant.name] >= MOST_OPEN:
            said = f"{tenant.name} has {MOST_OPEN} requests open at this server, which is the most: end one, or wait."
            await answer(Refused(429, said), send)
            return
        self._open[tenant.name] += 1
        try:
            await self._judged(tenant, scope, receive, send)
        finally:
            self._open[tenant.name] -= 1

    async def _judged(self, tenant: Tenant, scope: Scope, receive: Receive, send: Send) -> None:
        """Hand the request on, or answer why the engine does not see it."""
        asked = read_route(scope["method"], scope["path"])
        if isinstance(asked, Refused):
            await answer(asked, send)
            return
        body = await self._looked_at(asked, tenant.name, receive)
        if isinstance(body, Refused):
            await answer(body, send)
            return
        if asked.follows:
            followed = await self._followed(asked, receive)
            if followed is None:
                return
            receive = followed
        why = (lambda: self._threads.failure(asked.thread, asked.run)) if asked.wants_result else None
        if body is not None and scope["path"].endswith("/state/checkpoint"):
            scope = _of_newest(scope, json.loads(body))
        await self._app(scope, receive if body is None else _again(body, receive), masking(send, why))

    async def _followed(self, asked: Asked, receive: Receive) -> Receive | None:
        """Wait while the run is at work on another server, whose streams end there; None where the client has gone.

        After that the engine tells of its end, as of any run's that is over.
        """
        if not await self._threads.is_elsewhere(asked.thread, asked.run):
            return receive
        while (await receive()).get("more_body", False):
            pass
        gone = asyncio.ensure_future(receive())
        try:
            while not gone.done() and await self._threads.is_elsewhere(asked.thread, asked.run):
                await asyncio.wait({gone}, timeout=LOOK_EVERY_S)
            return None if gone.done() else _again(b"", receive)
        finally:
            gone.cancel()

    async def _looked_at(self, asked: Asked, user: str, receive: Receive) -> bytes | Refused | None:
        """The body that the engine may read, None where the request has none; or why it does not see the request."""
        if asked.thread and await self._threads.owner(asked.thread) not in {None, user}:
            return Refused(404, f"There is no thread {asked.thread}.")
        if not asked.has_body:
            return None
        data = await _whole_body(receive)
        if data is None:
            return Refused(413, f"A request may have {MOST_BYTES:,} bytes.")
        # a long one takes its time, and the other users' requests go on meanwhile
        body = await asyncio.to_thread(read_body, asked, data, user, self._redactor.now().content)
        if isinstance(body, Refused):
            return body
        named = body.get("thread_id") if not asked.thread else None
        if isinstance(named, str) and await self._threads.owner(named) not in {None, user}:
            return Refused(409, f"The thread {named} cannot be made: take another id.")
        if asked.begins_run and await self._threads.is_busy(asked.thread):
            return Refused(409, f"A run of the thread {asked.thread} is at work: wait for it, or cancel it.")
        if asked.begins_run and body.get("input") is None and not body.get("command"):
            body = {**body, "input": {}}  # what is cut off goes on: not every version knows null
        return json.dumps(body).encode()


def _is_open(scope: Scope) -> bool:
    return scope["path"] in OPEN_PATHS or (
        scope["method"] == "OPTIONS" and any(name == b"access-control-request-method" for name, _ in scope["headers"])
    )


def _of_newest(scope: Scope, body: Mapping[str, Any]) -> Scope:
    """The request for a thread's state as all versions understand it, where no checkpoint is named: RemoteGraph's."""
    if (body.get("checkpoint") or {}).get("checkpoint_id"):
        return scope
    path = scope["path"].removesuffix("/checkpoint")
    query = b"subgraphs=true" if body.get("subgraphs") is True else b""
    return {**scope, "method": "GET", "path": path, "raw_path": path.encode(), "query_string": query}


async def _whole_body(receive: Receive) -> bytes | None:
    """The body, None where it is too long."""
    parts: list[bytes] = []
    size, more = 0, True
    while more:
        message = await receive()
        if message["type"] != "http.request":
            return b""
        parts.append(message.get("body", b""))
        size, more = size + len(parts[-1]), message.get("more_body", False)
        if size > MOST_BYTES:
            return None
    return b"".join(parts)


def _again(data: bytes, receive: Receive) -> Receive:
    """The body once more, then whatever else the client sends."""
    told = False

    async def receive_again() -> MutableMapping[str, Any]:
        nonlocal told
        if told:
            return await receive()
        told = True
        return {"type": "http.request", "body": data, "more_body": False}

    return receive_again


# --- What a client hears: our own answers, and the engine's where those would say too much or nothing

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
