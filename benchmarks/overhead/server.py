"""The scripted endpoint of all contestants, in a separate process with persistent connections."""

import asyncio
import json
from collections import defaultdict
from contextlib import closing, suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection

from benchmarks.endpoint import EVENTS, content_length, listen, response_head, send_events
from benchmarks.overhead.prefix import PrefixRecord
from benchmarks.overhead.script import Script, answer, count_results, find_script

STATISTICS = "/runs/"
"""The path prefix of a run's statistics; the name of the run follows."""


@dataclass
class RunStatistics:
    """The request counts of one run. `finished` counts the requests to which the reply is the answer."""

    requests: int = 0
    finished: int = 0
    record: PrefixRecord = field(default_factory=PrefixRecord)

    def add(self, script: Script, body: bytes) -> None:
        """Count a request."""
        self.requests += 1
        self.finished += count_results(body) == script.steps * script.parallel
        if script.recorded:
            self.record.add(body)

    def as_json(self) -> bytes:
        """Return the counts as a JSON document."""
        counts = {
            "requests": self.requests,
            "finished": self.finished,
            "first": self.record.first,
            "percent": self.record.percent,
            "breaks": self.record.breaks,
        }
        return json.dumps(counts).encode()


class ScriptedEndpoint:
    """An endpoint that follows the script in the request's path. It answers any other request with a list of models."""

    def __init__(self) -> None:
        self._runs: dict[str, RunStatistics] = defaultdict(RunStatistics)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection until the client closes it."""
        with suppress(asyncio.IncompleteReadError, ConnectionError), closing(writer):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
                path = head.split(" ", 2)[1]
                body = await reader.readexactly(content_length(head))

                content_type, parts = self._respond(path, body)
                if content_type == EVENTS:
                    await send_events(writer, parts)
                else:
                    head_bytes = response_head(content_type, f"Content-Length: {len(parts[0])}")
                    writer.write(head_bytes + parts[0])
                await writer.drain()

        with suppress(ConnectionError):
            await writer.wait_closed()

    def _respond(self, path: str, body: bytes) -> tuple[str, list[bytes]]:
        """Return the content type and the parts of the response."""
        if path.startswith(STATISTICS):
            statistics = self._runs.pop(path.removeprefix(STATISTICS))
            return "application/json", [statistics.as_json()]

        match find_script(path):
            case None:
                return "application/json", [b'{"object": "list", "data": [{"id": "m", "object": "model"}]}']
            case script, run:
                self._runs[run].add(script, body)
                return answer(script, body)


def serve(pipe: Connection) -> None:
    """Serve until the other end of the pipe closes."""
    listen(pipe, ScriptedEndpoint().serve)
