import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from benchmarks.overhead.contestants.loops import HttpxLoop, OpenaiLoop
from benchmarks.overhead.job import Job
from benchmarks.overhead.script import FILE, Script, file_name
from benchmarks.overhead.server import STATISTICS, ScriptedEndpoint


@asynccontextmanager
async def endpoint() -> AsyncIterator[str]:
    server = await asyncio.start_server(ScriptedEndpoint().serve, "127.0.0.1", 0, limit=2**20)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    connections = asyncio.all_tasks() - {asyncio.current_task()}
    await asyncio.gather(*connections)


async def seen(url: str, run: str) -> dict[str, Any]:
    async with httpx2.AsyncClient(trust_env=False) as client:
        told: dict[str, Any] = (await client.get(f"{url}{STATISTICS}{run}")).json()
    return told


def folder(root: Path) -> str:
    for number in range(6):
        (root / file_name(number)).write_text(FILE)
    return str(root)


@pytest.mark.parametrize("loop", [HttpxLoop(), OpenaiLoop()])
@pytest.mark.parametrize("stream", [False, True])
def test_a_run_makes_the_steps_of_its_script(loop: HttpxLoop | OpenaiLoop, stream: bool, tmp_path: Path) -> None:
    async def play() -> dict[str, Any]:
        async with endpoint() as url:
            script = Script(3, parallel=2, pieces=5, recorded=True)
            job = Job(url + script.path("r"), folder(tmp_path), str(tmp_path), stream=stream)
            await asyncio.to_thread(loop.run, job)
            return await seen(url, "r")

    told = asyncio.run(play())
    assert (told["requests"], told["finished"], told["breaks"]) == (4, 1, 0)
    assert told["percent"] > 50


@pytest.mark.parametrize("loop", [HttpxLoop(), OpenaiLoop()])
def test_runs_at_once_are_told_apart(loop: HttpxLoop | OpenaiLoop, tmp_path: Path) -> None:
    async def play() -> dict[str, Any]:
        async with endpoint() as url:
            await loop.arun(Job(url + Script(3).path("r"), folder(tmp_path), str(tmp_path), count=4))
            return await seen(url, "r")

    told = asyncio.run(play())
    assert (told["requests"], told["finished"]) == (16, 4)
