"""A batch of many tasks, run by `mendgraph batch` and killed at random moments. Each task must be done exactly once.

A fixed seed determines what is killed: a worker, the batch itself, which is then restarted, or a node of the Ray
cluster, which is replaced. A second application of an edit changes the file again, so the files show each error.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from random import Random
from secrets import token_hex
from typing import Final, NamedTuple

import httpx2

from benchmarks.real_model.child import clean_environment
from benchmarks.scale.crew import STORE_VARIABLE, IncompleteRunError, Series, join_problems
from benchmarks.scale.database import Server, ServerCounters
from benchmarks.scale.figures import Point
from benchmarks.scale.process import Family
from benchmarks.scale.script import CALLS, changed_files, files, task
from benchmarks.scale.server import COUNTS
from mendgraph.graph.fleet.batch.batch_folder import read_results
from mendgraph.graph.fleet.batch.tasks import TaskResult
from mendgraph.nodes.records import OutcomeKind
from mendgraph.nodes.workspace.store.run_folder import DATA_DIR_VARIABLE
from tests.surfaces.batch.ray_nodes import ray_nodes

WORKERS: Final = 40
PROCESSES: Final = 4
NODES: Final = 3
WORKERS_ON_RAY: Final = 12
"""Each worker is a process on Ray."""
SEED: Final = 27
TASKS_A_KILL: Final = 40
LEAST_KILLS: Final = 3
KILLS_A_RESTART: Final = 3
"""One of this number of kills is a kill of the batch itself."""
LONGEST_S: Final = 1_800.0

_INTERVAL_S: Final = 0.1
_MOST_DELAY_S: Final = 2.0
"""The maximum delay of a kill after its number of calls, so that a run can be interrupted at any point."""
_MOST_NAMES: Final = 5
_BLOCK_BYTES: Final = 512


class Batch:
    """One batch, with its repository, its processes and its results."""

    def __init__(self, series: Series, url: str, store_url: str | None, tasks: int, stack: ExitStack) -> None:
        self._series = series
        self._url = url
        self._tasks = tasks
        self._name = token_hex(4)
        self._random = Random(SEED)
        self._kills = 0

        self._base = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="mendgraph-scale-")))
        self._results_folder = self._base / "tasks.batch"
        self._output = self._base / "output.txt"

        self._node_variables = {"OPENAI_API_KEY": "k"}
        if store_url:
            self._node_variables[STORE_VARIABLE] = store_url
        variables = {**self._node_variables, DATA_DIR_VARIABLE: f"{self._base}/data"}
        self._environment = clean_environment(dict(os.environ), self._base, variables)

        self._server = stack.enter_context(Server(store_url)) if store_url else None
        nodes = [self._node_environment(number) for number in range(NODES)]
        self._nodes = stack.enter_context(ray_nodes(nodes)) if series.on_ray else None

    def measure(self) -> Point:
        """Run the batch and kill its parts, and return the figures.

        Raises:
            IncompleteRunError: A task was not done, was done twice, or made more model calls than the kills explain.
        """
        _create_repository(self._base / "shop")
        self._write_tasks()

        counters = self._server.counters() if self._server else ServerCounters()
        family = Family(f"{DATA_DIR_VARIABLE}={self._base}/")
        start = time.monotonic()
        self._run(family, deadline=start + LONGEST_S)
        wall_s = time.monotonic() - start
        growth = self._server.counters() - counters if self._server else ServerCounters()

        results = list(read_results(str(self._results_folder)))
        if problems := list(self._problems(results)):
            raise IncompleteRunError(join_problems(problems))

        return Point(
            runs=self._tasks,
            wall_s=wall_s,
            cpu_s=family.cpu_s,
            base=0,
            memory=0,
            threads=0,
            handles=0,
            store_bytes=_disk_bytes(self._base, "*data") + growth.size,
            calls=sum(result.usage.calls for result in results),
            input_tokens=sum(result.usage.input_tokens for result in results),
            output_tokens=sum(result.usage.output_tokens for result in results),
            connections=self._server.connections if self._server else 0,
            database_cpu_s=growth.cpu_s,
            commits=growth.commits,
            log_bytes=growth.log_bytes,
            peak=family.peak,
            copies_bytes=_disk_bytes(self._base, "tasks.batch"),
            kills=self._kills,
            again=sum(_is_interrupted(result) for result in results),
        )

    def _write_tasks(self) -> None:
        lines = [json.dumps({"id": name, "prompt": task(name), "workspace": "shop"}) for name in self._names()]
        Path(self._base, "tasks.jsonl").write_text("\n".join(lines), "utf-8")

    def _names(self) -> list[str]:
        return [f"{self._name}-{number}" for number in range(self._tasks)]

    # --- The batch and its kills

    def _run(self, family: Family, deadline: float) -> None:
        """Run the batch until it ends, and restart it after each kill of the batch itself."""
        kills = self._plan_kills()
        process = self._start()
        try:
            kill = next(kills, None)
            while (code := process.poll()) is None:
                if time.monotonic() > deadline:
                    raise IncompleteRunError(f"the batch did not end within {LONGEST_S:g} s")

                if kill is not None and sum(self._call_counts().values()) >= kill.calls:
                    self._pause(family, kill.delay_s)
                    self._kill(process, kill, family)
                    kill = next(kills, None)
                    if process.poll() is not None:
                        process = self._start()

                self._pause(family, _INTERVAL_S)

            if code:
                output = self._output.read_text("utf-8", "replace")[-500:]
                raise IncompleteRunError(f"the batch ended with exit code {code}: {output}")
        finally:
            process.kill()
            process.wait()

    def _plan_kills(self) -> "Iterator[_Kill]":
        """Yield the kills in order."""
        count = max(LEAST_KILLS, self._tasks // TASKS_A_KILL) if self._series.killed else 0
        call_numbers = sorted(self._random.uniform(0, 0.9 * self._tasks * CALLS) for _ in range(count))
        for number, calls in enumerate(call_numbers, 2):
            delay_s = self._random.uniform(0, _MOST_DELAY_S)
            yield _Kill(calls, delay_s, is_batch=number % KILLS_A_RESTART == 0)

    def _kill(self, process: "subprocess.Popen[bytes]", kill: "_Kill", family: Family) -> None:
        """Kill the batch, a node or a worker. Without a running worker, nothing is killed."""
        if kill.is_batch:
            process.kill()
            process.wait()
            self._kills += 1
            return

        workers = family.workers(process.pid)
        if self._nodes is not None and self._random.random() < 0.5:
            number = self._random.randrange(1, len(self._nodes.pids))  # node 0 is the head, which the cluster needs
            self._nodes.kill(number)
            self._nodes.replace(number, self._node_environment(len(self._nodes.pids) + self._kills))
            self._kills += 1
        elif workers:
            with suppress(ProcessLookupError):
                os.kill(self._random.choice(workers), signal.SIGKILL)
            self._kills += 1

    def _start(self) -> "subprocess.Popen[bytes]":
        program = os.path.join(os.path.dirname(sys.executable), "mendgraph")
        arguments = f"--base-url {self._url}/v1 --model scripted --protocol native batch tasks.jsonl"
        if self._nodes:
            arguments += f" --workers {WORKERS_ON_RAY} --on ray --address {self._nodes.address}"
        else:
            arguments += f" --workers {WORKERS} --processes {PROCESSES}"

        with self._output.open("wb") as output:
            return subprocess.Popen(
                [program, *arguments.split()],
                cwd=self._base,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )

    def _pause(self, family: Family, seconds: float) -> None:
        """Wait, and update the usage of the processes meanwhile."""
        end = time.monotonic() + seconds
        while (remaining := end - time.monotonic()) > 0:
            time.sleep(min(_INTERVAL_S, remaining))
            family.update()

    def _call_counts(self) -> dict[str, int]:
        """Return the number of model calls of each task."""
        counts: dict[str, int] = httpx2.get(f"{self._url}{COUNTS}{self._name}", trust_env=False).json()
        return counts

    def _node_environment(self, number: int) -> dict[str, str]:
        return {**self._node_variables, DATA_DIR_VARIABLE: f"{self._base}/node-{number}-data"}

    # --- The check that each task was done exactly once

    def _problems(self, results: list[TaskResult]) -> Iterator[str]:
        """Yield a sentence for each task that was not done exactly once."""
        names = self._names()
        result_counts = Counter(result.id for result in results)
        for name in names:
            if result_counts[name] != 1:
                yield f"{name} has {result_counts[name]} results"
        if unknown := set(result_counts) - set(names):
            yield f"results of unknown tasks: {sorted(unknown)[:_MOST_NAMES]}"

        call_counts = self._call_counts()
        for result in results:
            yield from self._result_problems(result, call_counts.get(result.id, 0))

    def _result_problems(self, result: TaskResult, calls: int) -> Iterator[str]:
        if result.kind is not OutcomeKind.FINISHED or not Path(self._results_folder, result.patch).is_file():
            reason = result.error or result.message
            yield f"{result.id} ended {result.kind.value} with the patch {result.patch!r}: {reason}"

        most_calls = CALLS + self._kills if _is_interrupted(result) else CALLS
        if not CALLS <= calls <= most_calls:
            yield f"{result.id} made {calls} model calls instead of {CALLS}"

        for path, text in changed_files().items():
            if Path(result.copy_path, path).read_text("utf-8") != text:
                yield f"{result.id}: {path} has a wrong content"


class _Kill(NamedTuple):
    """A kill of the batch, or of a worker or node, `delay_s` seconds after this number of model calls."""

    calls: float
    delay_s: float
    is_batch: bool


def measure_batch(series: Series, url: str, store_url: str | None, tasks: int) -> Point:
    """Run a batch of this number of tasks in temporary folders, and return its figures."""
    with ExitStack() as stack:
        return Batch(series, url, store_url, tasks, stack).measure()


def _is_interrupted(result: TaskResult) -> bool:
    return result.resumed or result.tries > 1


def _create_repository(folder: Path) -> None:
    for path, text in files().items():
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, "utf-8")

    for arguments in ("init -q", "add .", "-c user.name=a -c user.email=a@example.org commit -qm first"):
        subprocess.run(["git", *arguments.split()], cwd=folder, check=True)


def _disk_bytes(base: Path, pattern: str) -> int:
    """Return the allocated bytes of the folders that match this pattern."""
    size = 0
    for folder in base.glob(pattern):
        for path in folder.rglob("*"):
            if not path.is_symlink() and path.is_file():
                size += path.lstat().st_blocks * _BLOCK_BYTES
    return size
