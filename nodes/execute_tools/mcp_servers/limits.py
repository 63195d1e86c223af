"""Limits of time and size of an MCP server. A server that exceeds one is ended."""

from collections.abc import Awaitable, Callable
from typing import Any, Final

START_S: Final = 30.0
"""Seconds in which a server has to start and to answer `initialize`."""

MOST_MESSAGE_BYTES: Final = 8_388_608
"""Bytes of one message, which is a line on stdio and a response over HTTP. It holds an image of 6 MB in base64."""

MOST_UNASKED_BYTES: Final = 67_108_864
"""Bytes that a server may write, on stdout and stderr together, between two requests."""

LONGEST_REASON: Final = 500
"""Bytes of stderr that are stored, and characters of a reason in a message."""

CLOSE_S: Final = 1.0
"""Seconds between the end of a server's input and SIGTERM."""

TERMINATE_S: Final = 1.0
"""Seconds between SIGTERM and the kill of the process group."""

END_S: Final = 4.0
"""Most seconds to wait for the end of a server."""


MOST_LISTED: Final = 500
"""The most tools of one server, and the most prompts."""

MOST_PAGES: Final = 100
"""The most pages of a server's list."""


class McpLimitError(Exception):
    """A server exceeded one of these limits; the message has the limit, without the server's name."""


async def read_pages(read: Callable[..., Awaitable[Any]], name: str) -> list[Any]:
    """Return the items `name` of all pages that `read` returns, at most one more than `MOST_LISTED`.

    Raises McpLimitError: there are more than `MOST_PAGES` pages.
    """
    from mcp.types import PaginatedRequestParams  # what it imports takes time

    items: list[Any] = []
    cursor: str | None = None

    for _ in range(MOST_PAGES):
        page = await read(params=PaginatedRequestParams(cursor=cursor))
        items += getattr(page, name)
        cursor = page.nextCursor

        if not cursor or len(items) > MOST_LISTED:
            return items[: MOST_LISTED + 1]

    raise McpLimitError(f"its list of {name} has more than {MOST_PAGES} pages")
