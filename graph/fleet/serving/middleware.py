"""In front of an engine: every request of a user comes through here, or not at all.

Users have their own threads and those threads' runs, and the one assistant that is everybody's. The engine sees the
requests of a table, and of their bodies nothing by which a client could name another thread, another user or other
parts of the machine, whichever version of the engine would have believed it.
"""

import asyncio
import json
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Annotated, Any, Final, Literal, NamedTuple

import httpx2
from langgraph_sdk import Auth
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from mendgraph.graph.configuration.context import AgentContext
from mendgraph.graph.fleet.serving.admission import Locks, open_admitter
from mendgraph.graph.fleet.serving.request_guard import App, Receive, Refused, Scope, Send, send_json
from mendgraph.graph.fleet.serving.tenants import Tenant, Tenants
from mendgraph.graph.machine.redaction import CurrentRedactor
from mendgraph.nodes.records import JsonMap

MOST_OPEN: Final = 16
"""Requests that one user may have open at one server, streams among them."""

MOST_BYTES: Final = 4_000_000
"""Of one request's body: more text than any model's window holds."""

OPEN_PATHS: Final = frozenset({"/ok", "/health", "/live", "/ready", "/info"})
"""What tells of the server and of no user: for load balancers, without a token."""

GRAPH: Final = "mendgraph"
"""The only graph that is served."""

_THREAD: Final = r"/threads/(?P<thread>[A-Za-z0-9][A-Za-z0-9._:-]{0,127})"
_RUN: Final = rf"{_THREAD}/runs/[A-Za-z0-9][A-Za-z0-9._:-]{{0,127}}"
_ROUTES: Final = tuple(
    (methods.split(), re.compile(pattern))
    for methods, pattern in (
        ("POST", r"/assistants/(search|count)"),
        ("GET", r"/assistants(/[A-Za-z0-9._:-]{1,128}(/(graph|schemas|subgraphs))?)?"),
        ("POST", r"/threads(/(search|count))?"),
        ("GET", r"/threads"),
        ("GET PATCH DELETE", _THREAD),
        ("GET", rf"{_THREAD}/(state|history)"),
        ("GET", rf"{_THREAD}/state/[A-Za-z0-9-]{{1,64}}"),
        ("POST", rf"{_THREAD}/(history|state/checkpoint)"),
        ("POST", rf"{_THREAD}/runs(?P<begins>)(/stream|/wait)?"),
        ("GET", rf"{_THREAD}/runs"),
        ("GET", rf"{_RUN}(/join|/stream)?"),
        ("POST", rf"{_RUN}/cancel"),
        ("DELETE", _RUN),
    )
)


class ServerRequest(NamedTuple):
    """A request for the engine: its thread, whether it begins a run, and whether it has a body."""

    thread: str
    begins_run: bool
    has_body: bool


def read_route(method: str, path: str) -> ServerRequest | Refused:
    """The request of a method and a path, or why it is refused."""
    for methods, pattern in _ROUTES:
        match = pattern.fullmatch(path)
        if match and method in methods:
            named = match.groupdict()
            return ServerRequest(named.get("thread") or "", "begins" in named, method in {"POST", "PATCH"})

    if method == "POST" and path.startswith("/threads/") and path.endswith("/state"):
        return Refused(403, "A thread is written by its runs alone.")

    return Refused(404, "This server has no such address.")


# --- What a body may hold


def _is_a_persons(message: Any) -> bool:
    """Whether it says nothing in the name of the model, of a tool or of the server, and takes nothing back."""
    if isinstance(message, list):
        return len(message) == 2 and message[0] in {"user", "human"} and isinstance(message[1], str | list)
    if not isinstance(message, dict):
        return isinstance(message, str)

    if "lc" in message:  # as LangChain's own classes write themselves
        name = message.get("id")
        message = message.get("kwargs")
        if not (isinstance(name, list) and name and name[-1] == "HumanMessage" and isinstance(message, dict)):
            return False

        message = {"type": "human", **message}

    roles = [message[key] for key in ("role", "type") if key in message]
    return (
        bool(roles) and all(role in ("user", "human") for role in roles) and isinstance(message["content"], str | list)
    )


def _of_a_person(messages: Any) -> Any:
    try:
        theirs = isinstance(messages, str) or all(map(_is_a_persons, messages))
    except (KeyError, TypeError):
        theirs = False

    if not theirs:
        raise ValueError('they should be a person\'s, such as [{"role": "user", "content": "Fix the bug."}]')
    return messages


def _of_context(context: JsonMap) -> JsonMap:
    for name in sorted(context.keys() - AgentContext.model_fields.keys()):
        raise ValueError(f"there is no setting {name[:60]!r}: it holds the fields that the graph's schema names")

    return context


class _Strict(BaseModel):
    """What is empty says nothing, whatever its name is."""

    model_config = ConfigDict(extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _without_nothing(cls, value: Any) -> Any:
        if isinstance(value, dict):
            return {key: item for key, item in value.items() if item or item == 0}
        return value


class _Checkpoint(_Strict):
    thread_id: str = ""
    checkpoint_id: str = ""
    checkpoint_ns: Literal[""] = ""


class _Metadata(_Strict):
    model_config = ConfigDict(extra="allow")

    owner: str = ""
    graph_id: Literal["mendgraph"] = GRAPH  # with another one a thread's state is lost


class _Config(_Strict):
    tags: list[str] = []
    metadata: dict[str, Any] = {}
    recursion_limit: int = Field(default=1, ge=1, le=100_000)


class _Command(_Strict):
    resume: Any = None


class _Input(_Strict):
    messages: Annotated[Any, AfterValidator(_of_a_person)] = []


class _Body(_Strict):
    """The body of any request but that for a run: it names no thread, and holds none of the engine's configuration."""

    model_config = ConfigDict(extra="allow")

    metadata: _Metadata = _Metadata()
    checkpoint: _Checkpoint = _Checkpoint()
    before: _Checkpoint | dict[Literal["configurable"], _Checkpoint] | str = ""
    thread_id: None = None
    supersteps: None = None
    config: None = None


_Mode = Literal["values", "updates", "messages", "messages-tuple", "debug", "tasks", "checkpoints", "custom", "events"]
_PASSIVE: Final = frozenset(
    {
        *("stream_subgraphs", "stream_resumable", "interrupt_before", "interrupt_after", "durability", "stream"),
        *("checkpoint_during", "multitask_strategy", "on_disconnect", "on_completion", "if_not_exists", "raise_error"),
        *("after_seconds", "feedback_keys", "langsmith_tracer", "checkpoint_id", "assistant_id"),
    }
)
"""What a run may be asked for that changes nothing of what it may do."""


class _RunBody(_Strict):
    input: _Input | None = None
    context: Annotated[dict[str, Any], AfterValidator(_of_context)] = {}
    config: _Config = _Config()
    command: _Command | None = None
    metadata: _Metadata = _Metadata()
    checkpoint: _Checkpoint = _Checkpoint()
    stream_mode: _Mode | list[_Mode] = "values"


def read_body(
    request: ServerRequest, data: bytes, user: str, scrub: Callable[[JsonMap], Any] = dict
) -> JsonMap | Refused:
    """The body of a request, or why it is refused: it exceeds what its user may request.

    `scrub` removes secrets, as engines store what they are sent unchanged.
    """
    try:
        body = scrub(json.loads(data or b"{}"))
    except (ValueError, RecursionError, TypeError):
        return Refused(400, "The request's body is no JSON object.")

    if not isinstance(body, dict):
        return Refused(422, "The request's body should be a JSON object.")

    try:
        if request.begins_run:
            run_body: Any = _RunBody.model_validate({key: body[key] for key in body if key not in _PASSIVE})
        else:
            run_body = _Body.model_validate(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        where = ".".join(str(part)[:60] for part in first["loc"])
        return Refused(422, f"{where}: {first['msg'].removeprefix('Value error, ')}.")

    places = [run_body.checkpoint]
    before = getattr(run_body, "before", "")
    if isinstance(before, dict):
        places += before.values()
    else:
        places.append(before)

    named = {place.thread_id for place in places if isinstance(place, _Checkpoint)}

    if run_body.metadata.owner not in {"", user} or not named <= {"", request.thread}:
        return Refused(422, "The request names another user or another thread.")

    return body


# --- Authorization for the engine

auth = Auth()
"""Authenticates users, and decides which resources of the engine they may read; all else is refused."""

OWNER = "owner"
"""The key of a thread's metadata that says whose it is."""


def token_of(headers: Mapping[Any, Any]) -> str:
    """The bearer token among the headers, "" where there is none; they are text or bytes."""
    for name, value in headers.items():
        if _text(name).lower() == "authorization":
            scheme, _, token = _text(value).partition(" ")
            if scheme.lower() == "bearer":
                return token.strip()

            return ""

    return ""


@auth.authenticate
async def authenticate(headers: dict[str, str]) -> Auth.types.MinimalUserDict:
    """The user who has this token."""
    tenant = open_admitter().tenants.of_token(token_of(headers))
    if tenant is None:
        raise Auth.exceptions.HTTPException(status_code=401, detail="Send the header Authorization: Bearer <token>.")

    return {"identity": tenant.name, "display_name": tenant.name, "is_authenticated": True}


@auth.on
async def refuse(ctx: Auth.types.AuthContext, value: Any) -> bool:  # noqa: ARG001 - the signature is the server's
    """Whatever nobody has thought of. Some servers ask for runs by themselves, and have looked whose they are."""
    return str(ctx.resource) == "runs"


@auth.on.threads
async def own_threads(ctx: Auth.types.AuthContext, value: Any) -> dict[str, str]:
    """A thread belongs to whoever made it; nobody else learns that it is there."""
    if isinstance(value, dict) and (value.get("kwargs") or {}).get("webhook"):
        raise Auth.exceptions.HTTPException(status_code=422, detail="A run may not have a webhook here.")

    if isinstance(value, dict) and ctx.action in {"create", "create_run", "update"}:
        metadata = value.get("metadata")
        if isinstance(metadata, dict):
            metadata[OWNER] = ctx.user.identity  # in its place: servers look at this very map
        else:
            value["metadata"] = {OWNER: ctx.user.identity}

    return {OWNER: ctx.user.identity}


async def known_assistants(ctx: Auth.types.AuthContext, value: Any) -> bool:  # noqa: ARG001 - the same
    """There is one, the machine itself, and nobody makes others: settings come with each request."""
    return True


auth.on.assistants.read(known_assistants)
auth.on.assistants.search(known_assistants)


def _text(raw: Any) -> str:
    if isinstance(raw, bytes):
        return raw.decode("latin-1")
    return str(raw)


# --- The middleware


class TenantMiddleware:
    """An ASGI application in front of another one.

    `locks` tell which threads are at work, `forget` deletes the checkpoints of a thread that is deleted.
    """

    def __init__(
        self,
        app: App,
        tenants: Tenants,
        locks: Locks,
        forget: Callable[[str], Awaitable[None]],
    ) -> None:
        self._app = app
        self._tenants = tenants
        self._locks = locks
        self._forget = forget
        self._redactor = CurrentRedactor(())
        self._open: Counter[str] = Counter()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request in, or answer it here."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
        elif scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
        elif scope["path"] in OPEN_PATHS or _is_preflight(scope):
            await self._app(scope, receive, masking(send))
        else:
            refused = await self._for_user(scope, receive, send)
            if refused is not None:
                await answer(refused, send)

    async def _for_user(self, scope: Scope, receive: Receive, send: Send) -> Refused | None:
        tokens = [value for name, value in scope["headers"] if name.lower() == b"authorization"]
        tenant = None
        if len(tokens) == 1:
            tenant = self._tenants.of_token(token_of({"authorization": tokens[0]}))

        if tenant is None:
            return Refused(401, "Send the header Authorization: Bearer <token>.")

        if self._open[tenant.name] >= MOST_OPEN:
            message = (
                f"{tenant.name} has {MOST_OPEN} requests open at this server, which is the most: end one, or wait."
            )

            return Refused(429, message)

        self._open[tenant.name] += 1

        try:
            return await self._judged(tenant, scope, receive, send)
        finally:
            self._open[tenant.name] -= 1

    async def _judged(self, tenant: Tenant, scope: Scope, receive: Receive, send: Send) -> Refused | None:
        """Hand the request on, or say why the engine does not see it."""
        route = read_route(scope["method"], scope["path"])
        if isinstance(route, Refused):
            return route

        if route.has_body:
            data = await _whole_body(receive)
            if data is None:
                return Refused(413, f"A request may have {MOST_BYTES:,} bytes.")

            # a long one takes its time, and the other users' requests go on meanwhile
            body = await asyncio.to_thread(read_body, route, data, tenant.name, self._redactor.now().content)
            if isinstance(body, Refused):
                return body

            if route.begins_run:
                body = await self._new_run(route.thread, body, scope)
                if isinstance(body, Refused):
                    return body

            if scope["path"].endswith("/state/checkpoint"):
                scope = _of_newest(scope, body)

            receive = _again(json.dumps(body).encode(), receive)

        deletes = scope["method"] == "DELETE" and scope["path"] == f"/threads/{route.thread}"
        if deletes and await self._is_own(scope, route.thread):
            await self._forget(route.thread)  # not every version of the engine does

        await self._app(scope, receive, masking(send))
        return None

    async def _new_run(self, name: str, body: JsonMap, scope: Scope) -> JsonMap | Refused:
        """The body of a run that the engine may begin in this thread."""
        if not await self._is_own(scope, name):
            return Refused(404, f"There is no thread {name}.")
        if await asyncio.to_thread(self._locks.is_held, f"thread {name}"):
            return Refused(409, f"A run of the thread {name} is at work: wait for it, or cancel it.")
        if body.get("command"):
            return body

        return {**body, "input": body.get("input") or {}}  # what is cut off goes on: not every version knows null

    async def _is_own(self, scope: Scope, thread: str) -> bool:
        """Whether the thread is this user's: the engine begins runs in others' as well."""
        headers = {"Authorization": f"Bearer {token_of(dict(scope['headers']))}"}
        transport = httpx2.ASGITransport(self._app, raise_app_exceptions=False)
        async with httpx2.AsyncClient(transport=transport, base_url="http://engine", trust_env=False) as client:
            return (await client.get(f"/threads/{thread}", headers=headers)).status_code == 200


def _is_preflight(scope: Scope) -> bool:
    is_preflight = any(name == b"access-control-request-method" for name, _ in scope["headers"])
    return bool(scope["method"] == "OPTIONS" and is_preflight)


def _of_newest(scope: Scope, body: JsonMap) -> Scope:
    """The request for a thread's state as all versions understand it, where no checkpoint is named: RemoteGraph's."""
    if (body.get("checkpoint") or {}).get("checkpoint_id"):
        return scope

    path = scope["path"].removesuffix("/checkpoint")
    query = b""
    if body.get("subgraphs") is True:
        query = b"subgraphs=true"

    return {**scope, "method": "GET", "path": path, "raw_path": path.encode(), "query_string": query}


async def _whole_body(receive: Receive) -> bytes | None:
    """The body, None where it is too long."""
    data = bytearray()
    more = True

    while more and len(data) <= MOST_BYTES:
        message = await receive()
        data += message.get("body", b"")
        more = message.get("more_body", False)

    if len(data) > MOST_BYTES:
        return None

    return bytes(data)


def _again(data: bytes, receive: Receive) -> Receive:
    """The body once more, then whatever else the client sends."""
    chunks = [data]

    async def receive_again() -> MutableMapping[str, Any]:
        if chunks:
            return {"type": "http.request", "body": chunks.pop(), "more_body": False}
        return await receive()

    return receive_again


# --- What a client hears: our own answers, and the engine's where those would not say too much

_FAILED: Final = (
    "The server could not do this. Try again in a moment; the people who run it find the reason in its log."
)


async def answer(refused: Refused, send: Send) -> None:
    """In the words of both: LangGraph's servers say `detail`, Aegra says `error` and `message`.

    Pages of other origins may read it, as they may read the engine's answers.
    """
    headers = [(b"access-control-allow-origin", b"*")]
    if refused.status == 401:
        headers.append((b"www-authenticate", b"Bearer"))

    document = {"error": "refused", "message": refused.detail, "detail": refused.detail}
    await send_json(refused.status, headers, document, send)


def masking(send: Send) -> Send:
    """Hand on what the engine answers, but what it says of its own failures.

    That has statements and addresses of the database in it.
    """
    failed = False

    async def send_on(message: MutableMapping[str, Any]) -> None:
        nonlocal failed
        if failed:
            return

        failed = message["type"] == "http.response.start" and message["status"] >= 500
        if failed:
            await answer(Refused(message["status"], _FAILED), send)
        else:
            await send(message)

    return send_on
