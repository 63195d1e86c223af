"""The shared parts of the benchmarks' endpoints: a server process, HTTP heads and event streams."""

import asyncio
import multiprocessing
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any, Final

EVENTS: Final = "text/event-stream"

_LONGEST_END_S: Final = 10
Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@contextmanager
def in_process(target: Callable[..., None], *arguments: Any) -> Iterator[str]:
    """Run `target(pipe, *arguments)` in a new process, and yield the address that it sends."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=target, args=(theirs, *arguments), daemon=True)
    process.start()
    theirs.close()
    try:
        yield ours.recv()
    finally:
        ours.close()
        process.join(_LONGEST_END_S)
        process.terminate()


def listen(pipe: Connection, serve: Serve) -> None:
    """Send the address through the pipe, and serve connections until the other end of the pipe closes."""

    async def work() -> None:
        server = await asyncio.start_server(serve, "127.0.0.1", 0, limit=2**20, backlog=1_024)
        pipe.send(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        await asyncio.to_thread(pipe.poll, None)

    asyncio.run(work())


def content_length(head: str) -> int:
    """Return the content length in the head of a request; 0 if it has none."""
    for line in head.split("\r\n"):
        name, _, value = line.partition(":")
        if name.lower() == "content-length":
            return int(value)
    return 0


def response_head(content_type: str, length_header: str) -> bytes:
    """Return the head of a response."""
    return f"HTTP/1.1 200 OK\r\nContent-Type: {content_type}\r\n{length_header}\r\n\r\n".encode()


async def send_events(writer: asyncio.StreamWriter, events: Iterable[bytes]) -> None:
    """Send each event as one chunk."""
    writer.write(response_head(EVENTS, "Transfer-Encoding: chunked"))

    for event in events:
        if writer.is_closing():  # its client was killed
            raise ConnectionResetError
        writer.write(b"%x\r\n%s\r\n" % (len(event), event))
        await asyncio.sleep(0)

    writer.write(b"0\r\n\r\n")
