"""Keeps web pages away from a server on this machine: `http.app` of the configurations for `langgraph dev` names it.

Every page that a browser shows can send requests to a server on loopback, and one whose name is rebound to 127.0.0.1
can read the answers as well. So each request is checked before the server's own routes and CORS see it: the name that
it was sent to, the origin of the page that sent it, and that its body is JSON, which no form can send.
"""

import json
import os
import re
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any, Final, NamedTuple

from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.middleware import Middleware

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

HOSTS_VARIABLE: Final = "MENDGRAPH_HOSTS"
"""More host names that the server is reached by, separated by commas. Its own address needs no mention."""

STUDIO_ORIGINS: Final = tuple(f"https://{region}smith.langchain.com" for region in ("", "eu.", "aws.", "apac."))
"""Where LangGraph Studio is. Source: langsmith.utils.get_host_url of langsmith 0.14."""

_LOOPBACK: Final = re.compile(r"(127\.0\.0\.1|localhost|\[::1\])(:\d{1,5})?")
LOOPBACK_ORIGINS: Final = rf"https?://{_LOOPBACK.pattern}"

_IN_PROCESS: Final = "/noauth"
"""The root path of requests that the server sends to itself, which no client can set."""

_JSON: Final = re.compile(r"application/json\s*(;.*)?", re.IGNORECASE)


class Refused(NamedTuple):
    """The answer to a request that the engine does not see."""

    status: int
    detail: str


class RequestGuard:
    """ASGI middleware that answers 403 or 415 to what a foreign page may have sent; all else goes on to `app`.

    Origins are those of the server's own CORS configuration (`http.cors` in `langgraph.json`), each by its name: "*"
    admits none. Without such a configuration they are Studio's and those of loopback.
    """

    def __init__(self, app: App) -> None:
        self._app = app
        cors = _cors(os.environ) or {"allow_origins": STUDIO_ORIGINS, "allow_origin_regex": LOOPBACK_ORIGINS}
        self._origins = frozenset(cors.get("allow_origins") or ())
        self._origin_pattern = re.compile(cors.get("allow_origin_regex") or r"(?!)")
        served = os.environ.get("LANGGRAPH_API_URL", "").partition("://")[2].partition("/")[0]
        named = (*os.environ.get(HOSTS_VARIABLE, "").split(","), served)
        self._hosts = frozenset(filter(None, (_name_of(host.strip()) for host in named)))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request pass, or refuse it."""
        inside = scope["type"] == "lifespan" or scope.get("root_path", "").split("/")[:2] == ["", _IN_PROCESS[1:]]
        inside = inside or (scope.get("method"), scope.get("path")) == ("GET", "/ok")  # what health checks ask for

        if inside:
            refused = None
        else:
            refused = self.refused(scope.get("method", "GET"), Headers(scope=scope))

        if refused is None:
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008, "reason": "refused"})
        else:
            await send_json(refused.status, [], {"error": "refused", "detail": refused.detail}, send)

    def refused(self, method: str, headers: Headers) -> Refused | None:
        """Why a request is not let in, None where it is."""
        host = _only(headers, "host")
        origin = _only(headers, "origin")

        if host is None or not (_LOOPBACK.fullmatch(host.lower()) or _name_of(host) in self._hosts):
            display = ascii(host) if host else "no name"
            message = (
                f"This server is not known as {display}: address it as 127.0.0.1, or name the host in {HOSTS_VARIABLE}."
            )

            return Refused(403, message)

        if "origin" in headers:
            foreign = origin not in self._origins and not self._origin_pattern.fullmatch(origin or "")
        else:  # a page that does not say its own; a link that is followed may
            followed = method == "GET" and headers.getlist("sec-fetch-dest") == ["document"]
            foreign = not {"cross-site", "same-site"}.isdisjoint(headers.getlist("sec-fetch-site")) and not followed

        if foreign:
            message = (
                f"Pages of {ascii(origin) if origin else 'other sites'} may not use this server: add the origin to "
                "http.cors.allow_origins in langgraph.json, or send the request from a program."
            )

            return Refused(403, message)

        has_body = "transfer-encoding" in headers or {*headers.getlist("content-length")} - {"0"}
        if has_body and not _JSON.fullmatch(_only(headers, "content-type") or ""):
            return Refused(415, "The body of a request has to be JSON: send it as Content-Type: application/json.")

        return None


app = Starlette(middleware=[Middleware(RequestGuard)])
"""No routes of its own: the server adds them behind the middleware."""


def _cors(environment: Mapping[str, str]) -> Mapping[str, Any] | None:
    """The server's CORS configuration, from where `langgraph_api.config` has it."""
    configuration = json.loads(environment.get("CORS_CONFIG") or "null")
    cors: Mapping[str, Any] | None = configuration or json.loads(environment.get("LANGGRAPH_HTTP") or "{}").get("cors")
    return cors


def _name_of(host: str) -> str:
    """A host without its port."""
    return re.sub(r":\d{1,5}$", "", host.lower())


def _only(headers: Headers, name: str) -> str | None:
    """The value of a header that is there once."""
    values = headers.getlist(name)
    if len(values) == 1:
        return values[0]

    return None


async def send_json(status: int, headers: list[tuple[bytes, bytes]], content: dict[str, Any], send: Send) -> None:
    """Send a complete response."""
    body = json.dumps(content).encode()
    content_headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": [*content_headers, *headers]})
    await send({"type": "http.response.body", "body": body})
