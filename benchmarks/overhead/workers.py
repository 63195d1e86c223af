"""The worker processes of the contestants, which take turns."""

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
    """A contestant did not follow the script, so its cost cannot be compared."""


@dataclass(frozen=True)
class Entrant:
    """A contestant and the name of its row. `argument` is the name of its tool's path parameter."""

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
class JobCost:
    """The cost of one job.

    `process_cpu_s` includes the start of the worker. `statistics` are the request counts of the endpoint.
    """

    cpu_s: float
    process_cpu_s: float
    stored_bytes: int
    statistics: Mapping[str, Any]


class RunOptions(NamedTuple):
    """Options for a script: streaming, the number of concurrent runs, and an unmeasured first run."""

    stream: bool = False
    at_once: int = 1
    warm: bool = True


ONE_RUN = RunOptions()


class Worker:
    """The process of one contestant."""

    def __init__(self, entrant: Entrant, home: Path) -> None:
        self.entrant = entrant
        self._home = home
        self._numbers = count()

        command = [python_of(entrant.environment), "-P", "-m", "benchmarks.overhead.child", entrant.loader]
        self._process = subprocess.Popen(
            command,
            cwd=home,
            env=clean_environment(os.environ, home, {"PYTHONPATH": str(root_of_project())}),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=(home / "stderr.txt").open("wb"),
            text=True,
        )
        self._read_response()

    def run(self, script: Script, server: str, files: Path, *, stream: bool = False, at_once: int = 1) -> JobCost:
        """Run the script, `at_once` times in one event loop, and return the cost.

        Raises:
            FailedRunError: The run failed, or its requests do not match the script.
        """
        run_name = f"{self._home.name}-{next(self._numbers)}"
        script = replace(script, argument=self.entrant.argument)

        with tempfile.TemporaryDirectory(dir=self._home) as keep:
            job = Job(server + script.path(run_name), str(files), keep, stream, self.entrant.stored, at_once)
            self._send_job(job)
            response = self._read_response()
            stored_bytes = sum(path.stat().st_size for path in Path(keep).rglob("*") if path.is_file())

        statistics = httpx2.get(f"{server}{STATISTICS}{run_name}", trust_env=False).json()
        requests = statistics["requests"]
        if statistics["finished"] != at_once or requests != at_once * (script.steps + 1):
            raise FailedRunError(f"{self.entrant.name} made {requests} requests in {at_once} runs of {script}")

        return JobCost(response["cpu_s"], response["process_cpu_s"], stored_bytes, statistics)

    def close(self) -> None:
        """Close the pipes, upon which the process exits; kill it after 10 seconds."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()

        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _send_job(self, job: Job) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(asdict(job)) + "\n")
        self._process.stdin.flush()

    def _read_response(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        response: dict[str, Any] = json.loads(line) if line else {"error": "the process exited"}

        if "error" in response:
            stderr = (self._home / "stderr.txt").read_text("utf-8", "replace").strip()[-600:]
            raise FailedRunError(f"{self.entrant.name}: {response['error']}\n{stderr}".rstrip())
        return response


class Workers:
    """A context manager that starts a worker for each contestant, on one endpoint and one folder of files."""

    def __init__(self, server: str, entrants: Iterable[Entrant]) -> None:
        self._server = server
        self._entrants = tuple(entrants)
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
                worker = Worker(entrant, home)
                self._stack.callback(worker.close)
                self._workers.append(worker)

            self._stack = self._stack.pop_all()

        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._stack.close()

    def run_rounds(
        self, plays: Callable[[Entrant], bool], scripts: Sequence[Script], rounds: int, options: RunOptions = ONE_RUN
    ) -> dict[str, list[list[JobCost]]]:
        """Run the scripts and return the costs of each contestant, by round and script.

        A run of the first script warms each contestant up. The contestants rotate: each round begins with another one.
        A contestant that fails is excluded, with a message on standard error.
        """
        costs: dict[str, list[list[JobCost]]] = {}
        workers = [worker for worker in self._workers if plays(worker.entrant)]

        if options.warm:
            workers = self._run_round(workers, scripts[:1], options, {}, turn=-1)
        for turn in range(rounds):
            workers = self._run_round(workers, scripts, options, costs, turn)

        names = {worker.entrant.name for worker in workers}
        return {name: rounds_of_name for name, rounds_of_name in costs.items() if name in names}

    def _run_round(
        self,
        workers: list[Worker],
        scripts: Sequence[Script],
        options: RunOptions,
        costs: dict[str, list[list[JobCost]]],
        turn: int,
    ) -> list[Worker]:
        """Run the scripts once on each worker, add the costs, and return the workers that succeeded."""
        first = turn % max(len(workers), 1)
        failures = []

        for worker in workers[first:] + workers[:first]:
            try:
                job_costs = [
                    worker.run(script, self._server, self._files, stream=options.stream, at_once=options.at_once)
                    for script in scripts
                ]
            except FailedRunError as error:
                print(f"Excluded: {error}", file=sys.stderr)
                failures.append(worker)
            else:
                costs.setdefault(worker.entrant.name, []).append(job_costs)

        return [worker for worker in workers if worker not in failures]

    def first_runs(self, plays: Callable[[Entrant], bool], script: Script, rounds: int) -> dict[str, list[float]]:
        """Return the CPU seconds of new processes: the imports and the first run.

        The first round, which writes the byte code, is not counted.
        """
        costs: dict[str, list[float]] = {}
        homes = count()
        for turn in range(rounds + 1):
            for entrant in filter(plays, self._entrants):
                home = self._root / f"first{next(homes)}"
                home.mkdir()
                with closing(Worker(entrant, home)) as worker:
                    cost = worker.run(script, self._server, self._files)

                if turn:
                    costs.setdefault(entrant.name, []).append(cost.process_cpu_s)

        return costs
