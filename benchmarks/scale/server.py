"""The model of the benchmark: in a process of its own, and each of its replies begins after a fixed time."""

import asyncio
import json
from collections import Counter
from contextlib import AbstractContextManager, closing, suppress
from multiprocessing.connection import Connection
from typing import Final

from benchmarks.endpoint import content_length, in_process, listen, response_head, send_events
from benchmarks.scale.script import events, run_of

COUNTS: Final = "/counts/"
"""The path at which the requests of each run are told whose name begins with what follows."""


class SlowEndpoint:
    """Answers each request by the script, `latency_s` seconds after it came."""

    def __init__(self, latency_s: float) -> None:
        self._latency_s = latency_s
        self._requests: Counter[str] = Counter()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, until its client closes it."""
        with suppress(asyncio.IncompleteReadError, ConnectionError), closing(writer):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
                body = await reader.readexactly(content_length(head))
                path = head.split(" ", 2)[1]
                if path.startswith(COUNTS):
                    begin = path.removeprefix(COUNTS)
                    found = {name: made for name, made in self._requests.items() if name.startswith(begin)}
                    told = json.dumps(found).encode()
                    writer.write(response_head("application/json", f"Content-Length: {len(told)}") + told)
                else:
                    await self._answer(writer, body)
                await writer.drain()
        with suppress(ConnectionError):
            await writer.wait_closed()

    async def _answer(self, writer: asyncio.StreamWriter, body: bytes) -> None:
        self._requests[run_of(body) or ""] += 1
        await asyncio.sleep(self._latency_s)
        await send_events(writer, events(body))


def _run(pipe: Connection, latency_s: float) -> None:
    listen(pipe, SlowEndpoint(latency_s).serve)


def endpoint(latency_s: float) -> AbstractContextManager[str]:
    """The address of the model, which answers as long as this is entered."""
    return in_process(_run, latency_s)
