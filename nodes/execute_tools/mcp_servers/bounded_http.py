"""HTTP for MCP: clients whose responses are bounded in size."""

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Final

import httpx

from mendgraph.nodes.execute_tools.mcp_servers.limits import MOST_MESSAGE_BYTES, MOST_UNASKED_BYTES, McpLimitError

_TIMEOUT_S: Final = 30.0
_READ_TIMEOUT_S: Final = 300.0
"""Source: the defaults of `mcp` for its own clients."""

LOGIN_NEEDED: Final = "it asks for a login (HTTP 401): run `mendgraph mcp login NAME`, or add a header with a key"


@dataclass(frozen=True)
class BoundedHttp:
    """Creates the HTTP clients of one connection.

    `refuse` is called with the limit that a response exceeds, since `mcp` does not report the error.
    """

    refuse: Callable[[str], None]

    def client(
        self,
        headers: dict[str, str] | None = None,
        timeout: httpx.Timeout | None = None,
        auth: httpx.Auth | None = None,
    ) -> httpx.AsyncClient:
        """Return a client; the signature is that of `mcp`'s own factory. Without `auth` a 401 ends the connection."""
        checks = [self._bound] if auth else [self._bound, self._refuse_login]
        return httpx.AsyncClient(
            headers={**(headers or {}), "Accept-Encoding": "identity"},
            timeout=timeout or httpx.Timeout(_TIMEOUT_S, read=_READ_TIMEOUT_S),
            auth=auth,
            follow_redirects=True,
            event_hooks={"response": checks},
        )

    async def _bound(self, response: httpx.Response) -> None:
        """Limit the body. A compressed one is refused: it was not requested, and its size tells nothing."""
        if response.headers.get("content-encoding", "identity") != "identity":
            raise self._error("it sent a compressed response, which was not requested")

        is_stream = response.headers.get("content-type", "").startswith("text/event-stream")
        if isinstance(response.stream, httpx.AsyncByteStream):
            most = MOST_UNASKED_BYTES if is_stream else MOST_MESSAGE_BYTES
            response.stream = _BoundedStream(response.stream, most, self._error)

    async def _refuse_login(self, response: httpx.Response) -> None:
        if response.status_code == httpx.codes.UNAUTHORIZED:
            raise self._error(LOGIN_NEEDED)

    def _error(self, problem: str) -> McpLimitError:
        self.refuse(problem)
        return McpLimitError(problem)


class _BoundedStream(httpx.AsyncByteStream):
    def __init__(self, stream: httpx.AsyncByteStream, most: int, error: Callable[[str], McpLimitError]) -> None:
        self._stream = stream
        self._most = most
        self._error = error

    async def __aiter__(self) -> AsyncIterator[bytes]:
        size = 0

        async for chunk in self._stream:
            size += len(chunk)
            if size > self._most:
                raise self._error(f"it sent a response of more than {self._most} bytes")

            yield chunk

    async def aclose(self) -> None:
        await self._stream.aclose()
