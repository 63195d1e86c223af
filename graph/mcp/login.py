"""`mendgraph mcp login`: OAuth in the person's browser, which comes back to a port of this machine."""

import asyncio
import logging
import webbrowser
from collections.abc import Callable
from contextlib import suppress
from typing import Final
from urllib.parse import parse_qs, urlsplit

import httpx
from mcp.client.auth import OAuthFlowError

from mendgraph.graph.configuration.mcp_servers import ServerSettings
from mendgraph.nodes.execute_tools.mcp_servers.bounded_http import BoundedHttp
from mendgraph.nodes.execute_tools.mcp_servers.limits import McpLimitError
from mendgraph.nodes.execute_tools.mcp_servers.logins import new_login
from mendgraph.nodes.records import ToolError, ToolErrorCode

LOGIN_S: Final = 300.0
"""Seconds for the person to log in. Source: the default of `mcp`."""

_PATH: Final = "/callback"
_PAGE: Final = b"mendgraph has your answer: you may close this page."


class _Callback:
    """The page to which the browser comes back; `answer` has its parameters."""

    def __init__(self) -> None:
        self.answer: asyncio.Future[dict[str, list[str]]] = asyncio.get_running_loop().create_future()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ValueError, OSError, asyncio.IncompleteReadError):
            request = (await reader.readline()).decode("ascii", "replace").split()
            target = urlsplit(request[1] if len(request) > 1 else "")
            status = b"404 Not Found"

            if target.path == _PATH and not self.answer.done():
                self.answer.set_result(parse_qs(target.query))
                status = b"200 OK"

            head = b"HTTP/1.1 %s\r\nContent-Type: text/plain\r\nConnection: close\r\n\r\n" % status
            writer.write(head + (_PAGE if status.startswith(b"2") else b""))
            await writer.drain()

        writer.close()

    async def code(self) -> tuple[str, str | None]:
        answer = await self.answer
        if "code" not in answer:
            raise OAuthFlowError(f"the server answered {answer.get('error', ['nothing'])[0]!r}")

        return answer["code"][0], answer.get("state", [None])[0]


async def log_in(url: str, settings: ServerSettings, open_page: Callable[[str], None]) -> ToolError | None:
    """Log the person in at `url` and store the login; `open_page` shows the server's page to them."""
    logging.getLogger("mcp").addHandler(logging.NullHandler())  # it logs tracebacks
    callback = _Callback()
    server = await asyncio.start_server(callback.serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]

    async def redirect(address: str) -> None:
        await asyncio.to_thread(open_page, address)

    auth = new_login(url, f"http://127.0.0.1:{port}{_PATH}", redirect, callback.code)
    method = "GET" if settings.type == "sse" else "POST"
    client = BoundedHttp(lambda _: None).client({"Accept": "application/json, text/event-stream"}, auth=auth)
    problem = ""

    try:
        async with server, asyncio.timeout(LOGIN_S), client, client.stream(method, url, json={}):
            pass  # what it answers to this matters to nobody: it asks for the login first
    except TimeoutError:
        problem = f"nobody has logged in within {LOGIN_S:g} s"
    except (OAuthFlowError, httpx.HTTPError, McpLimitError, ValueError) as error:
        problem = str(error) or type(error).__name__

    if not problem and auth.context.current_tokens is None:
        problem = "it asks for no login"
    if problem:
        return ToolError(code=ToolErrorCode.UNAVAILABLE, message=f"There is no login to {url}: {problem}.")

    return None


def open_in_browser(address: str) -> None:
    """Open the page in the person's browser, if there is one."""
    with suppress(webbrowser.Error):
        webbrowser.open(address)
