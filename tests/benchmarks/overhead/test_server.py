import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from benchmarks.overhead.child import LOADERS, do
from benchmarks.overhead.contestants.loops import HttpxLoop, OpenaiLoop
from benchmarks.overhead.job import Job
from benchmarks.overhead.scenarios import Figures
from benchmarks.overhead.script import FILE, Script, file_name
from benchmarks.overhead.server import STATISTICS, ScriptedEndpoint
from benchmarks.overhead.tables import markdown
from benchmarks.overhead.workers import ENTRANTS


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


class Contestant:
    """One that is told by its job whether to fail."""

    def run(self, job: Job) -> None:
        """One run."""
        Path(job.keep, "ran").touch()

    async def arun(self, job: Job) -> None:
        """Several."""
        raise ValueError(f"{job.count} are too many")


def test_every_entrant_has_a_loader() -> None:
    assert {entrant.loader for entrant in ENTRANTS} == set(LOADERS)
    modules = {loader.partition(":")[0] for loader in LOADERS.values()}
    folder = Path(__file__).parent.parent.parent.parent / "benchmarks" / "overhead" / "contestants"
    assert {path.stem for path in folder.glob("*.py")} - {"__init__"} == modules


def test_a_job_is_done_and_its_cost_is_told(tmp_path: Path) -> None:
    told = do(Contestant(), Job("", "", str(tmp_path)))
    assert (list(told), told["cpu_s"] >= 0, (tmp_path / "ran").exists()) == (["cpu_s"], True, True)


def test_a_failure_is_told() -> None:
    assert do(Contestant(), Job("", "", "", count=64)) == {"error": "ValueError: 64 are too many"}


COMPARED = Figures("CPU per step", "ms", {"mendgraph": [2.0, 3.0], "other": [10.0, 15.0]})
ALONE = Figures("First request", "bytes", {"mendgraph": [12.0]}, ours="", digits=0)


def test_the_tables_of_the_readme() -> None:
    assert markdown(COMPARED) == (
        "| CPU per step | median ms | lowest | highest | mendgraph / it |\n"
        "| --- | --- | --- | --- | --- |\n"
        "| mendgraph | 2.50 | 2.00 | 3.00 | 1.00 |\n"
        "| other | 12.50 | 10.00 | 15.00 | 0.20 |\n"
    )
    assert markdown(ALONE) == (
        "| First request | median bytes | lowest | highest |\n| --- | --- | --- | --- |\n| mendgraph | 12 | 12 | 12 |\n"
    )
