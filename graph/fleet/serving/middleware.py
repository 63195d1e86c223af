"""The middleware in front of the engine: it authenticates users, and passes on only the requests of a table.

Users have their own threads and runs, and share the one assistant. The bodies that the engine receives cannot name
another thread, another user or other parts of the machine, whatever its version would accept.
"""

import asyncio
import json
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, MutableMapping
from contextlib import suppress
from typing import Annotated, Any, Final, Literal, NamedTuple

import httpx2
from langgraph_sdk import Auth
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse

from mendgraph.graph.configuration.context import AgentContext
from mendgraph.graph.fleet.serving.admission import Locks, open_admitter
from mendgraph.graph.fleet.serving.request_guard import App, Receive, Refused, Scope, Send
from mendgraph.graph.fleet.serving.tenants import Tenant, Tenants
from mendgraph.graph.machine.redaction import CurrentRedactor
from mendgraph.nodes.records import JsonMap

MOST_OPEN: Final = 16
"""The most requests, streams included, that one user may have open at one server."""

MOST_BYTES: Final = 4_000_000
"""The largest body of a request: more text than any model's window holds."""

OPEN_PATHS: Final = frozenset({"/ok", "/health", "/live", "/ready", "/info"})
"""Paths for load balancers, which need no token and say nothing about users."""

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
    """Return the request of a method and a path, or why it is refused."""
    for methods, pattern in _ROUTES:
        match = pattern.fullmatch(path)
        if match and method in methods:
            named = match.groupdict()
            return ServerRequest(named.get("thread") or "", "begins" in named, method in {"POST", "PATCH"})

    if method == "POST" and path.startswith("/threads/") and path.endswith("/state"):
        return Refused(403, "Only its runs may write a thread.")

    return Refused(404, "This server has no such address.")


# --- Bodies


def _is_human(message: Any) -> bool:
    """Return whether it is a human message: a client cannot speak for the model or a tool, or remove messages."""
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


def _check_messages(messages: Any) -> Any:
    try:
        are_human = isinstance(messages, str) or all(map(_is_human, messages))
    except (KeyError, TypeError):
        are_human = False

    if not are_human:
        raise ValueError('they should be a person\'s, such as [{"role": "user", "content": "Fix the bug."}]')
    return messages


def _check_context(context: JsonMap) -> JsonMap:
    unknown = sorted(context.keys() - AgentContext.model_fields.keys())
    if unknown:
        raise ValueError(f"there is no setting {unknown[0][:60]!r}: it holds the fields that the graph's schema names")

    return context


class _Strict(BaseModel):
    """A body that ignores empty values, whatever their names are."""

    model_config = ConfigDict(extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _drop_empty(cls, value: Any) -> Any:
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
    messages: Annotated[Any, AfterValidator(_check_messages)] = []


class _Body(_Strict):
    """The body of a request that begins no run: it names no thread, and has none of the engine's configuration."""

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
"""Fields of a run that do not change what it may do."""


class _RunBody(_Strict):
    input: _Input | None = None
    context: Annotated[dict[str, Any], AfterValidator(_check_context)] = {}
    config: _Config = _Config()
    command: _Command | None = None
    metadata: _Metadata = _Metadata()
    checkpoint: _Checkpoint = _Checkpoint()
    stream_mode: _Mode | list[_Mode] = "values"


def read_body(
    request: ServerRequest, data: bytes, user: str, scrub: Callable[[JsonMap], Any] = dict
) -> JsonMap | Refused:
    """Return the body of a request, or why it is refused.

    `scrub` removes secrets: engines store bodies as they are.
    """
    try:
        body = scrub(json.loads(data or b"{}"))
    except (ValueError, RecursionError, TypeError):
        return Refused(400, "The request's body is not a JSON object.")

    if not isinstance(body, dict):
        return Refused(422, "The request's body should be a JSON object.")

    checked: _Body | _RunBody
    try:
        if request.begins_run:
            checked = _RunBody.model_validate({key: body[key] for key in body if key not in _PASSIVE})
        else:
            checked = _Body.model_validate(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        where = ".".join(str(part)[:60] for part in first["loc"])
        return Refused(422, f"{where}: {first['msg'].removeprefix('Value error, ')}.")

    threads = {checkpoint.thread_id for checkpoint in _checkpoints_of(checked)}
    if checked.metadata.owner not in {"", user} or not threads <= {"", request.thread}:
        return Refused(422, "The request names another user or another thread.")

    return body


def _checkpoints_of(body: _Body | _RunBody) -> Iterator[_Checkpoint]:
    yield body.checkpoint

    if isinstance(body, _Body):
        if isinstance(body.before, dict):
            yield from body.before.values()
        elif isinstance(body.before, _Checkpoint):
            yield body.before


# --- Authorization for the engine

auth = Auth()
"""Authenticates users, and lets them access their own threads and the assistant; all else is refused."""

OWNER = "owner"
"""The key of a thread's metadata with the name of its owner."""


def token_of(headers: Mapping[Any, Any]) -> str:
    """Return the bearer token among the headers, which are text or bytes; "" if there is none."""
    for name, value in headers.items():
        if _text(name).lower() == "authorization":
            scheme, _, token = _text(value).partition(" ")
            if scheme.lower() == "bearer":
                return token.strip()

            return ""

    return ""


@auth.authenticate
async def authenticate(headers: dict[str, str]) -> Auth.types.MinimalUserDict:
    """Return the user with this token."""
    tenant = open_admitter().tenants.of_token(token_of(headers))
    if tenant is None:
        raise Auth.exceptions.HTTPException(status_code=401, detail="Send the header Authorization: Bearer <token>.")

    return {"identity": tenant.name, "display_name": tenant.name, "is_authenticated": True}


@auth.on
async def refuse(ctx: Auth.types.AuthContext, value: Any) -> bool:  # noqa: ARG001 - the signature is the server's
    """Refuse all other resources. Some servers authorize runs themselves, after those of their threads."""
    return str(ctx.resource) == "runs"


@auth.on.threads
async def restrict_to_owner(ctx: Auth.types.AuthContext, value: Any) -> dict[str, str]:
    """Filter threads by their owner, and set the owner of new ones."""
    if isinstance(value, dict) and (value.get("kwargs") or {}).get("webhook"):
        raise Auth.exceptions.HTTPException(status_code=422, detail="A run may not have a webhook here.")

    if isinstance(value, dict) and ctx.action in {"create", "create_run", "update"}:
        metadata = value.get("metadata")
        if isinstance(metadata, dict):
            metadata[OWNER] = ctx.user.identity  # in place: servers read this very map
        else:
            value["metadata"] = {OWNER: ctx.user.identity}

    return {OWNER: ctx.user.identity}


async def allow_assistants(ctx: Auth.types.AuthContext, value: Any) -> bool:  # noqa: ARG001 - the same
    """Allow everybody to read the one assistant; settings come with each request."""
    return True


auth.on.assistants.read(allow_assistants)
auth.on.assistants.search(allow_assistants)


def _text(raw: Any) -> str:
    if isinstance(raw, bytes):
        return raw.decode("latin-1")
    return str(raw)


# --- The middleware


class TenantMiddleware:
    """ASGI middleware for the requests of tenants.

    `locks` tell which threads have an active run; `delete_checkpoints` is called for a thread that is deleted.
    """

    def __init__(
        self,
        app: App,
        tenants: Tenants,
        locks: Locks,
        delete_checkpoints: Callable[[str], Awaitable[None]],
    ) -> None:
        self._app = app
        self._tenants = tenants
        self._locks = locks
        self._delete_checkpoints = delete_checkpoints
        self._redactor = CurrentRedactor(())
        self._open: Counter[str] = Counter()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or answer it."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
        elif scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
        elif scope["path"] in OPEN_PATHS or _is_preflight(scope):
            await self._app(scope, receive, hide_errors(scope, receive, send))
        else:
            refused = await self._handle_user(scope, receive, send)
            if refused is not None:
                await refusal_response(refused)(scope, receive, send)

    async def _handle_user(self, scope: Scope, receive: Receive, send: Send) -> Refused | None:
        tokens = [value for name, value in scope["headers"] if name.lower() == b"authorization"]
        tenant = None
        if len(tokens) == 1:
            tenant = self._tenants.of_token(token_of({"authorization": tokens[0]}))

        if tenant is None:
            return Refused(401, "Send the header Authorization: Bearer <token>.")

        if self._open[tenant.name] >= MOST_OPEN:
            message = (
                f"{tenant.name} has {MOST_OPEN} open requests at this server, which is the maximum: end one, or wait."
            )

            return Refused(429, message)

        self._open[tenant.name] += 1

        try:
            return await self._handle_route(tenant, scope, receive, send)
        finally:
            self._open[tenant.name] -= 1

    async def _handle_route(self, tenant: Tenant, scope: Scope, receive: Receive, send: Send) -> Refused | None:
        """Pass the request on, or return why it is refused."""
        route = read_route(scope["method"], scope["path"])
        if isinstance(route, Refused):
            return route

        if route.has_body:
            data = await _read_bounded(scope, receive)
            if data is None:
                return Refused(413, f"The request is too long: its body may have at most {MOST_BYTES:,} bytes.")

            # in a thread: a long body takes its time
            body = await asyncio.to_thread(read_body, route, data, tenant.name, self._redactor.now().content)
            if isinstance(body, Refused):
                return body

            if route.begins_run:
                body = await self._prepare_run(route.thread, body, scope)
                if isinstance(body, Refused):
                    return body

            if scope["path"].endswith("/state/checkpoint"):
                scope = _newest_state_request(scope, body)

            receive = _replay_body(json.dumps(body).encode(), receive)

        deletes = scope["method"] == "DELETE" and scope["path"] == f"/threads/{route.thread}"
        if deletes and await self._is_own(scope, route.thread):
            await self._delete_checkpoints(route.thread)  # not every version of the engine does

        await self._app(scope, receive, hide_errors(scope, receive, send))
        return None

    async def _prepare_run(self, thread: str, body: JsonMap, scope: Scope) -> JsonMap | Refused:
        """Return the body of a run that the engine may begin in this thread, or why it may not."""
        if not await self._is_own(scope, thread):
            return Refused(404, f"There is no thread {thread}.")
        if await asyncio.to_thread(self._locks.is_held, f"thread {thread}"):
            return Refused(409, f"A run of the thread {thread} is working: wait for it, or cancel it.")
        if body.get("command"):
            return body

        return {**body, "input": body.get("input") or {}}  # an interrupted turn continues: not every version knows null

    async def _is_own(self, scope: Scope, thread: str) -> bool:
        """Ask the engine whether the thread is this user's: it begins runs in threads of others as well."""
        headers = {"Authorization": f"Bearer {token_of(dict(scope['headers']))}"}
        transport = httpx2.ASGITransport(self._app, raise_app_exceptions=False)
        async with httpx2.AsyncClient(transport=transport, base_url="http://engine", trust_env=False) as client:
            return (await client.get(f"/threads/{thread}", headers=headers)).status_code == 200


def _is_preflight(scope: Scope) -> bool:
    is_preflight = any(name == b"access-control-request-method" for name, _ in scope["headers"])
    return bool(scope["method"] == "OPTIONS" and is_preflight)


def _newest_state_request(scope: Scope, body: JsonMap) -> Scope:
    """Rewrite RemoteGraph's request for the newest state into the form that all versions of the engine know."""
    if (body.get("checkpoint") or {}).get("checkpoint_id"):
        return scope

    path = scope["path"].removesuffix("/checkpoint")
    query = b""
    if body.get("subgraphs") is True:
        query = b"subgraphs=true"

    return {**scope, "method": "GET", "path": path, "raw_path": path.encode(), "query_string": query}


async def _read_bounded(scope: Scope, receive: Receive) -> bytes | None:
    """Return the body, None if it is too long, b"" if the client has disconnected."""
    data = bytearray()
    with suppress(ClientDisconnect):
        async for chunk in Request(scope, receive).stream():
            data += chunk
            if len(data) > MOST_BYTES:
                return None

    return bytes(data)


def _replay_body(data: bytes, receive: Receive) -> Receive:
    """Receive this body, then what else the client sends."""
    chunks = [data]

    async def receive_body() -> MutableMapping[str, Any]:
        if chunks:
            return {"type": "http.request", "body": chunks.pop(), "more_body": False}
        return await receive()

    return receive_body


# --- Responses

_FAILED: Final = (
    "The server could not do this. Try again in a moment; the people who run it find the reason in its log."
)


def refusal_response(refused: Refused) -> JSONResponse:
    """Return a response with the fields of both servers: LangGraph's have `detail`, Aegra `error` and `message`.

    Pages of other origins may read it, as they may read the engine's responses.
    """
    headers = {"access-control-allow-origin": "*"}
    if refused.status == 401:
        headers["www-authenticate"] = "Bearer"

    content = {"error": "refused", "message": refused.detail, "detail": refused.detail}
    return JSONResponse(content, refused.status, headers)


def hide_errors(scope: Scope, receive: Receive, send: Send) -> Send:
    """Replace responses of the engine about its own failures, which may name database addresses and statements."""
    has_failed = False

    async def send_response(message: MutableMapping[str, Any]) -> None:
        nonlocal has_failed
        if has_failed:
            return

        has_failed = message["type"] == "http.response.start" and message["status"] >= 500
        if has_failed:
            await refusal_response(Refused(message["status"], _FAILED))(scope, receive, send)
        else:
            await send(message)

    return send_response
