"""A server on stdio: a program in an empty directory, in a process group of its own, whose output is bounded."""

import asyncio
import os
import signal
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final

from mendgraph.nodes.execute_tools.mcp_servers.connections import McpServer
from mendgraph.nodes.execute_tools.mcp_servers.limits import (
    CLOSE_S,
    LONGEST_REASON,
    MOST_MESSAGE_BYTES,
    MOST_UNASKED_BYTES,
    TERMINATE_S,
)

if TYPE_CHECKING:
    from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
    from mcp.shared.message import SessionMessage

_CHUNK: Final = 65_536
_LAST_ERRORS_S: Final = 0.2
"""Seconds for reading stderr after the end of stdout."""


class StdioProcess:
    """A running server and its two message streams for `ClientSession`.

    `problem` is the limit that the server has exceeded, or ""; `ended` is set when it cannot be used any more. `stderr`
    is the end of its error output.
    """

    def __init__(self, process: Process) -> None:
        import anyio

        if process.stdin is None or process.stdout is None or process.stderr is None:
            raise ValueError("the process was started without pipes")

        self.problem = ""
        self.stderr = b""
        self.ended = asyncio.Event()
        self._process = process
        self._stdin = process.stdin
        self._stdout = process.stdout
        self._stderr = process.stderr
        self._unasked = 0
        self._to_session, self.received = anyio.create_memory_object_stream["SessionMessage | Exception"](0)
        self.sent, self._from_session = anyio.create_memory_object_stream["SessionMessage"](0)
        self._errors = asyncio.create_task(self._read_errors())
        self._tasks = [self._errors, asyncio.create_task(self._read()), asyncio.create_task(self._write())]

    @property
    def streams(
        self,
    ) -> "tuple[MemoryObjectReceiveStream[SessionMessage | Exception], MemoryObjectSendStream[SessionMessage]]":
        """The messages from the server, and those to it."""
        return self.received, self.sent

    async def _read(self) -> None:
        from mcp.shared.message import SessionMessage
        from mcp.types import JSONRPCMessage
        from pydantic import ValidationError

        async with self._to_session:
            with suppress(asyncio.IncompleteReadError):
                while not self.problem:
                    try:
                        line = await self._stdout.readuntil(b"\n")
                    except asyncio.LimitOverrunError:
                        self._refuse(f"it sent a message of more than {MOST_MESSAGE_BYTES} bytes")
                        break

                    self._count(line)

                    try:
                        message = JSONRPCMessage.model_validate_json(line)
                    except ValidationError:  # a line of log output
                        continue

                    await self._to_session.send(SessionMessage(message))

            await asyncio.wait({self._errors}, timeout=_LAST_ERRORS_S)
            self.ended.set()

    async def _write(self) -> None:
        async with self._from_session:
            with suppress(OSError):
                async for message in self._from_session:
                    self._unasked = 0
                    text = message.message.model_dump_json(by_alias=True, exclude_none=True)
                    self._stdin.write(f"{text}\n".encode())
                    await self._stdin.drain()

    async def _read_errors(self) -> None:
        while chunk := await self._stderr.read(_CHUNK):
            self.stderr = (self.stderr + chunk)[-LONGEST_REASON:]
            self._count(chunk)
            if self.problem:
                return

    def _count(self, chunk: bytes) -> None:
        self._unasked += len(chunk)
        if self._unasked > MOST_UNASKED_BYTES:
            self._refuse(f"it wrote more than {MOST_UNASKED_BYTES} bytes without being asked")

    def _refuse(self, problem: str) -> None:
        self.problem = self.problem or problem
        self.ended.set()

    async def end(self) -> None:
        """Ask the server to end, then kill its process group."""
        self._stdin.close()

        try:
            if not self.problem and not await self._has_ended(CLOSE_S):
                self._signal(signal.SIGTERM)
                await self._has_ended(TERMINATE_S)
        finally:
            self._signal(signal.SIGKILL)
            await self._process.wait()
            for task in self._tasks:
                task.cancel()

            await asyncio.gather(*self._tasks, return_exceptions=True)
            for stream in (self.received, self.sent):
                stream.close()

    async def _has_ended(self, seconds: float) -> bool:
        with suppress(TimeoutError):
            await asyncio.wait_for(self._process.wait(), seconds)
            return True

        return False

    def _signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, number)


@asynccontextmanager
async def started_process(server: McpServer) -> AsyncIterator[StdioProcess]:
    """Start the server; at the end of the block it and its process group have ended.

    Raises:
        OSError: the program cannot be started.
    """
    with TemporaryDirectory(prefix="mendgraph-mcp-", ignore_cleanup_errors=True) as empty:
        process = await asyncio.create_subprocess_exec(
            *server.argv,
            cwd=server.cwd or empty,
            env=dict(server.env),
            stdin=PIPE,
            stdout=PIPE,
            stderr=PIPE,
            limit=MOST_MESSAGE_BYTES,
            start_new_session=True,
        )
        running = StdioProcess(process)

        try:
            yield running
        finally:
            await running.end()
