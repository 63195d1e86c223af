"""Middleware that protects a local server from web pages; `http.app` in `langgraph.json` names it.

Each page in a browser can send requests to a server on loopback, and one whose name is rebound to 127.0.0.1 can read
the responses as well. So each request is checked before the server's routes and CORS: the host that it was sent to, the
origin of the page that sent it, and that its body is JSON, which no form can send.
"""

import json
import os
import re
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any, Final, NamedTuple

from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.middleware import Middleware
from starlette.responses import JSONResponse

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

HOSTS_VARIABLE: Final = "MENDGRAPH_HOSTS"
"""Names further hosts of the server, separated by commas. Its own address is known."""

STUDIO_ORIGINS: Final = tuple(f"https://{region}smith.langchain.com" for region in ("", "eu.", "aws.", "apac."))
"""The origins of LangGraph Studio. Source: langsmith.utils.get_host_url of langsmith 0.14."""

_LOOPBACK: Final = re.compile(r"(127\.0\.0\.1|localhost|\[::1\])(:\d{1,5})?")
LOOPBACK_ORIGINS: Final = rf"https?://{_LOOPBACK.pattern}"

_IN_PROCESS: Final = "/noauth"
"""The root path of requests from the server to itself; no client can set it."""

_JSON: Final = re.compile(r"application/json\s*(;.*)?", re.IGNORECASE)


class Refused(NamedTuple):
    """The status and the reason of a request that is not passed on."""

    status: int
    detail: str


class RequestGuard:
    """ASGI middleware that answers 403 or 415 to requests that a foreign page may have sent.

    It allows the origins of the server's CORS configuration (`http.cors` in `langgraph.json`) by name: "*" allows none.
    Without such a configuration it allows Studio's and those of loopback.
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
        """Pass the request on, or refuse it."""
        is_internal = scope["type"] == "lifespan" or scope.get("root_path", "").split("/")[:2] == ["", _IN_PROCESS[1:]]
        is_internal = is_internal or (scope.get("method"), scope.get("path")) == ("GET", "/ok")  # health checks

        if is_internal:
            refused = None
        else:
            refused = self.check(scope.get("method", "GET"), Headers(scope=scope))

        if refused is None:
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008, "reason": "refused"})
        else:
            response = JSONResponse({"error": "refused", "detail": refused.detail}, refused.status)
            await response(scope, receive, send)

    def check(self, method: str, headers: Headers) -> Refused | None:
        """Return why a request is refused, None if it is not."""
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
        else:  # a page that sends no origin; following a link is allowed
            is_link = method == "GET" and headers.getlist("sec-fetch-dest") == ["document"]
            foreign = not {"cross-site", "same-site"}.isdisjoint(headers.getlist("sec-fetch-site")) and not is_link

        if foreign:
            message = (
                f"Pages of {ascii(origin) if origin else 'other sites'} may not use this server: add the origin to "
                "http.cors.allow_origins in langgraph.json, or send the request from a program."
            )

            return Refused(403, message)

        has_body = "transfer-encoding" in headers or {*headers.getlist("content-length")} - {"0"}
        if has_body and not _JSON.fullmatch(_only(headers, "content-type") or ""):
            return Refused(415, "The body of a request must be JSON: send it as Content-Type: application/json.")

        return None


app = Starlette(middleware=[Middleware(RequestGuard)])
"""It has no routes: the server adds its own behind the middleware."""


def _cors(environment: Mapping[str, str]) -> Mapping[str, Any] | None:
    """Return the server's CORS configuration, read as `langgraph_api.config` does."""
    configuration = json.loads(environment.get("CORS_CONFIG") or "null")
    cors: Mapping[str, Any] | None = configuration or json.loads(environment.get("LANGGRAPH_HTTP") or "{}").get("cors")
    return cors


def _name_of(host: str) -> str:
    """Return a host without its port."""
    return re.sub(r":\d{1,5}$", "", host.lower())


def _only(headers: Headers, name: str) -> str | None:
    """Return the value of a header that occurs once."""
    values = headers.getlist(name)
    if len(values) == 1:
        return values[0]

    return None
