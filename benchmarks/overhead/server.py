"""The endpoint that all contestants are measured on: in a process of its own, with connections that stay open."""

import asyncio
import json
from collections import defaultdict
from contextlib import closing, suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection

from benchmarks.endpoint import EVENTS, answer_head, content_length, listen, send_events
from benchmarks.overhead.prefix import PrefixRecord
from benchmarks.overhead.script import Script, answer, count_results, find_script

STATISTICS = "/runs/"
"""The path at which a run's numbers are asked for, with its name behind."""


@dataclass
class Seen:
    """What came of one run: `finished` counts the requests after which nothing was left to do."""

    requests: int = 0
    finished: int = 0
    record: PrefixRecord = field(default_factory=PrefixRecord)

    def add(self, script: Script, body: bytes) -> None:
        """The next request."""
        self.requests += 1
        self.finished += count_results(body) == script.steps * script.parallel
        if script.recorded:
            self.record.add(body)

    def statistics(self) -> bytes:
        """As JSON."""
        told = {"requests": self.requests, "finished": self.finished, "first": self.record.first}
        return json.dumps({**told, "percent": self.record.percent, "breaks": self.record.breaks}).encode()


class ScriptedEndpoint:
    """Answers each request by the script that its address tells; any other with a list of models."""

    def __init__(self) -> None:
        self._runs: dict[str, Seen] = defaultdict(Seen)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, until its client closes it."""
        with suppress(asyncio.IncompleteReadError, ConnectionError), closing(writer):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
                path = head.split(" ", 2)[1]
                body = await reader.readexactly(content_length(head))
                kind, parts = self._answer(path, body)
                if kind == EVENTS:
                    await send_events(writer, parts)
                else:
                    writer.write(answer_head(kind, f"Content-Length: {len(parts[0])}") + parts[0])
                await writer.drain()
        with suppress(ConnectionError):
            await writer.wait_closed()

    def _answer(self, path: str, body: bytes) -> tuple[str, list[bytes]]:
        if path.startswith(STATISTICS):
            return "application/json", [self._runs.pop(path.removeprefix(STATISTICS)).statistics()]
        found = find_script(path)
        if found is None:
            return "application/json", [b'{"object": "list", "data": [{"id": "m", "object": "model"}]}']
        script, run = found
        self._runs[run].add(script, body)
        return answer(script, body)


def serve(pipe: Connection) -> None:
    """Run the endpoint until the other end of the pipe closes."""
    listen(pipe, ScriptedEndpoint().serve)
