"""The scripted endpoint of the benchmark, in a separate process. Each response begins after a fixed time."""

import asyncio
import json
from collections import Counter
from contextlib import AbstractContextManager, closing, suppress
from multiprocessing.connection import Connection
from typing import Final

from benchmarks.endpoint import content_length, in_process, listen, response_head, send_events
from benchmarks.scale.script import events, run_of

COUNTS: Final = "/counts/"
"""The path prefix of the request counts. A prefix of the runs' names follows."""


class SlowEndpoint:
    """An endpoint that responds to each request by the script after `latency_s` seconds."""

    def __init__(self, latency_s: float) -> None:
        self._latency_s = latency_s
        self._requests: Counter[str] = Counter()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection until the client closes it."""
        with suppress(asyncio.IncompleteReadError, ConnectionError), closing(writer):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
                body = await reader.readexactly(content_length(head))
                path = head.split(" ", 2)[1]

                if path.startswith(COUNTS):
                    counts = self._counts(path.removeprefix(COUNTS))
                    writer.write(response_head("application/json", f"Content-Length: {len(counts)}") + counts)
                else:
                    await self._respond(writer, body)
                await writer.drain()

        with suppress(ConnectionError):
            await writer.wait_closed()

    def _counts(self, prefix: str) -> bytes:
        """Return the request counts of the runs with this prefix as a JSON document."""
        counts = {name: count for name, count in self._requests.items() if name.startswith(prefix)}
        return json.dumps(counts).encode()

    async def _respond(self, writer: asyncio.StreamWriter, body: bytes) -> None:
        self._requests[run_of(body) or ""] += 1
        await asyncio.sleep(self._latency_s)
        await send_events(writer, events(body))


def _run(pipe: Connection, latency_s: float) -> None:
    listen(pipe, SlowEndpoint(latency_s).serve)


def endpoint(latency_s: float) -> AbstractContextManager[str]:
    """Return a context manager that runs the endpoint and yields its address."""
    return in_process(_run, latency_s)
