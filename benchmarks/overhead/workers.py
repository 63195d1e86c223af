"""The contestants as processes that take turns: started, warmed up, told what to do, and ended."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, replace
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

import httpx2

from benchmarks.overhead.environments import LANGCHAIN, MENDGRAPH, PYDANTIC_AI, python_of
from benchmarks.overhead.job import Job
from benchmarks.overhead.script import FILE, FILES, Script, file_name
from benchmarks.overhead.server import STATISTICS
from benchmarks.real_model.child import clean_environment, root_of_project

OURS = "mendgraph"
OURS_STORED = "mendgraph, with store"
CREATE_AGENT = "create_agent"
CREATE_AGENT_STORED = "create_agent, with SqliteSaver"


class FailedRunError(RuntimeError):
    """A contestant did not do what the script asks for, so that there is nothing to compare."""


@dataclass(frozen=True)
class Entrant:
    """A contestant under the name of its row. `argument` is what its tool calls a path."""

    name: str
    loader: str
    environment: str = MENDGRAPH
    argument: str = "path"
    stored: bool = False


ENTRANTS = (
    Entrant("httpx loop", "httpx loop"),
    Entrant("openai SDK loop", "openai SDK loop"),
    Entrant("two-node LangGraph", "two-node LangGraph"),
    Entrant(CREATE_AGENT, CREATE_AGENT, LANGCHAIN),
    Entrant("deepagents", "deepagents", LANGCHAIN, argument="file_path"),
    Entrant("pydantic-ai", "pydantic-ai", PYDANTIC_AI),
    Entrant(OURS, OURS),
    Entrant(OURS_STORED, OURS, stored=True),
    Entrant(CREATE_AGENT_STORED, CREATE_AGENT, LANGCHAIN, stored=True),
)


@dataclass(frozen=True)
class Ran:
    """What a job took: CPU seconds, those of its process since the start, bytes on the disk, the endpoint's counts."""

    cpu_s: float
    process_cpu_s: float
    kept: int
    seen: Mapping[str, Any]


class Times(NamedTuple):
    """How often and in which way a script is run: streamed, several at once, and whether once before it counts."""

    stream: bool = False
    at_once: int = 1
    warm: bool = True


ONCE = Times()


class Worker:
    """One contestant in its process."""

    def __init__(self, entrant: Entrant, home: Path) -> None:
        self.entrant, self._home = entrant, home
        self._numbers = count()
        self._process = subprocess.Popen(
            [python_of(entrant.environment), "-P", "-m", "benchmarks.overhead.child", entrant.loader],
            cwd=home,
            env=clean_environment(os.environ, home, {"PYTHONPATH": str(root_of_project())}),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=(home / "stderr.txt").open("wb"),
            text=True,
        )
        self._read()

    def run(self, script: Script, server: str, files: Path, *, stream: bool = False, at_once: int = 1) -> Ran:
        """One job by this script, or several of them at once.

        Raises:
            FailedRunError: it failed, or did not make the steps of the script.
        """
        number = next(self._numbers)
        run = f"{self._home.name}-{number}"
        script = replace(script, argument=self.entrant.argument)
        with tempfile.TemporaryDirectory(dir=self._home) as keep:
            job = Job(server + script.path(run), str(files), keep, stream, self.entrant.stored, at_once)
            self._write(asdict(job))
            answered = self._read()
            kept = sum(path.stat().st_size for path in Path(keep).rglob("*") if path.is_file())
        seen = httpx2.get(f"{server}{STATISTICS}{run}", trust_env=False).json()
        if seen["finished"] != at_once or seen["requests"] != at_once * (script.steps + 1):
            raise FailedRunError(f"{self.entrant.name} made {seen['requests']} requests in {at_once} runs of {script}")
        return Ran(answered["cpu_s"], answered["process_cpu_s"], kept, seen)

    def close(self) -> None:
        """End the process, which ends with its standard input."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _write(self, job: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(job) + "\n")
        self._process.stdin.flush()

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        answered: dict[str, Any] = json.loads(line) if line else {"error": "it ended"}
        if "error" in answered:
            words = (self._home / "stderr.txt").read_text("utf-8", "replace").strip()[-600:]
            raise FailedRunError(f"{self.entrant.name}: {answered['error']}\n{words}".rstrip())
        return answered


class Workers:
    """Some contestants, as a context manager, on one endpoint and one folder of files."""

    def __init__(self, server: str, entrants: Iterable[Entrant]) -> None:
        self._server, self._entrants = server, tuple(entrants)
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        root = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="mendgraph-bench-")))
        self._root = root
        self._files = root / "files"
        self._files.mkdir()
        for number in range(FILES):
            (self._files / file_name(number)).write_text(FILE, "utf-8")
        self._workers: list[Worker] = []
        with self._stack:
            for number, entrant in enumerate(self._entrants):
                home = root / f"home{number}"
                home.mkdir()
                self._workers.append(Worker(entrant, home))
                self._stack.callback(self._workers[-1].close)
            self._stack = self._stack.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._stack.close()

    def take_turns(
        self, taking_part: Callable[[Entrant], bool], scripts: Sequence[Script], rounds: int, times: Times = ONCE
    ) -> dict[str, list[list[Ran]]]:
        """What each contestant took for each script, round by round, after an unmeasured run of the first script.

        In each round somebody else begins. One that fails is left out, and it is said why.
        """
        ran: dict[str, list[list[Ran]]] = {}
        workers = [worker for worker in self._workers if taking_part(worker.entrant)]
        for turn in range(-1 if times.warm else 0, rounds):
            first = turn % max(len(workers), 1)
            for worker in workers[first:] + workers[:first]:
                try:
                    took = self._run_all(worker, scripts if turn >= 0 else scripts[:1], times)
                except FailedRunError as error:
                    print(f"Left out: {error}", file=sys.stderr)
                    workers = [each for each in workers if each is not worker]
                    ran.pop(worker.entrant.name, None)
                else:
                    ran.setdefault(worker.entrant.name, []).extend([took] if turn >= 0 else [])
        return ran

    def first_runs(self, plays: Callable[[Entrant], bool], script: Script, rounds: int) -> dict[str, list[float]]:
        """Return the CPU seconds of new processes: the imports and the first run. The first round leaves byte code."""
        costs: dict[str, list[float]] = {}
        homes = count()
        for turn in range(rounds + 1):
            for entrant in filter(plays, self._entrants):
                home = self._root / f"first{next(homes)}"
                home.mkdir()
                with closing(Worker(entrant, home)) as worker:
                    run = worker.run(script, self._server, self._files)

                if turn:
                    costs.setdefault(entrant.name, []).append(run.process_cpu_s)

        return costs

    def _run_all(self, worker: Worker, scripts: Sequence[Script], times: Times) -> list[Ran]:
        return [
            worker.run(each, self._server, self._files, stream=times.stream, at_once=times.at_once) for each in scripts
        ]
