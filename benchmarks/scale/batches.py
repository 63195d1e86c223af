"""A batch of many tasks, made by `mendgraph batch` and killed at random moments: each task has to be done exactly once.

What is killed is drawn with a fixed seed: a worker, the batch itself, which is then started again, or a node of the Ray
cluster, in whose place comes a new one. An edit that is made twice leaves another file, so the files tell all.
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
from benchmarks.scale.crew import MOST_TOLD, STORE_VARIABLE, NotDoneError, Series
from benchmarks.scale.database import Server
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
"""Each is a process there."""
SEED: Final = 27
TASKS_A_KILL: Final = 40
LEAST_KILLS: Final = 3
EVERYTHING: Final = 3
"""Of so many kills one is that of the batch itself."""
LONGEST_S: Final = 1_800.0

_LOOK_S: Final = 0.1
_LATEST_S: Final = 2.0
"""Up to so much later than its number of calls a kill comes, so that it meets runs anywhere."""


class Batch:
    """One batch, from the repository that its tasks are about to what came of them."""

    def __init__(self, series: Series, url: str, store_url: str | None, tasks: int, stack: ExitStack) -> None:
        self._series, self._url, self._tasks = series, url, tasks
        self._base = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="mendgraph-scale-")))
        self._out, self._name, self._random = self._base / "tasks.batch", token_hex(4), Random(SEED)
        self._kills = 0
        own = {STORE_VARIABLE: store_url} if store_url else {}
        self._node = {**own, "OPENAI_API_KEY": "k"}
        self._environment = clean_environment(
            dict(os.environ), self._base, {**self._node, DATA_DIR_VARIABLE: f"{self._base}/data"}
        )
        self._server = stack.enter_context(Server(store_url)) if store_url else None
        nodes = [self._new_node(number) for number in range(NODES)]
        self._nodes = stack.enter_context(ray_nodes(nodes)) if series.on_ray else None

    def measure(self) -> Point:
        """Work on it to its end, whatever is killed meanwhile.

        Raises:
            NotDoneError: a task was not done, was done twice, or asked its model more often than its kills explain.
        """
        _repository(self._base / "shop")
        lines = (json.dumps({"id": name, "prompt": task(name), "workspace": "shop"}) for name in self._names())
        Path(self._base, "tasks.jsonl").write_text("\n".join(lines), "utf-8")
        before, began = self._server.done() if self._server else None, time.monotonic()
        family = Family(f"{DATA_DIR_VARIABLE}={self._base}/")
        self._work(family, began + LONGEST_S)
        wall_s = time.monotonic() - began
        after = self._server.done() if self._server else None
        results = list(read_results(str(self._out)))
        if wrong := [*self._problems(results)]:
            raise NotDoneError("; ".join(wrong[:MOST_TOLD]) + (" ..." if len(wrong) > MOST_TOLD else ""))
        return Point(
            runs=self._tasks,
            wall_s=wall_s,
            cpu_s=family.cpu_s,
            base=0,
            memory=0,
            threads=0,
            handles=0,
            store_bytes=_kept(self._base, "*data") + (after.size - before.size if after and before else 0),
            calls=sum(each.usage.calls for each in results),
            input_tokens=sum(each.usage.input_tokens for each in results),
            output_tokens=sum(each.usage.output_tokens for each in results),
            connections=self._server.connections if self._server else 0,
            database_cpu_s=after.cpu_s - before.cpu_s if after and before else 0,
            commits=after.commits - before.commits if after and before else 0,
            log_bytes=after.log_bytes - before.log_bytes if after and before else 0,
            peak=family.peak,
            copies_bytes=_kept(self._base, "tasks.batch"),
            kills=self._kills,
            again=sum(each.resumed or each.tries > 1 for each in results),
        )

    # --- The batch, and who kills it

    def _work(self, family: Family, latest: float) -> None:
        kills = self._planned()
        process = self._start()
        try:
            due = next(kills, None)
            while (code := process.poll()) is None:
                if time.monotonic() > latest:
                    raise NotDoneError(f"it has not ended within {LONGEST_S:g} s")
                if due is not None and sum(self._asked().values()) >= due.calls:
                    self._pause(family, due.later_s)
                    self._kill(process, due.everything, family)
                    due = next(kills, None)
                    if process.poll() is not None:
                        process = self._start()
                self._pause(family, _LOOK_S)
            if code:
                raise NotDoneError(f"it ended with the code {code}: {self._said()}")
        finally:
            process.kill()
            process.wait()

    def _planned(self) -> "Iterator[_Kill]":
        count = max(LEAST_KILLS, self._tasks // TASKS_A_KILL) if self._series.killed else 0
        at = sorted(self._random.uniform(0, 0.9 * self._tasks * CALLS) for _ in range(count))
        for number, calls in enumerate(at, 2):
            yield _Kill(calls, self._random.uniform(0, _LATEST_S), number % EVERYTHING == 0)

    def _kill(self, process: "subprocess.Popen[bytes]", everything: bool, family: Family) -> None:
        victims = [process.pid] if everything else family.workers(process.pid)
        if not everything and self._nodes is not None and self._random.random() < 0.5:
            number = self._random.randrange(1, len(self._nodes.pids))  # without its head there is no cluster
            self._nodes.kill(number)
            self._nodes.replace(number, self._new_node(len(self._nodes.pids) + self._kills))
        elif victims:
            with suppress(ProcessLookupError):
                os.kill(self._random.choice(victims), signal.SIGKILL)
        else:
            return
        self._kills += 1
        if everything:
            process.wait()

    def _start(self) -> "subprocess.Popen[bytes]":
        words = f"--base-url {self._url}/v1 --model scripted --protocol native batch tasks.jsonl"
        where = f"--workers {WORKERS} --processes {PROCESSES}"
        if self._nodes:
            where = f"--workers {WORKERS_ON_RAY} --on ray --address {self._nodes.address}"
        with Path(self._base, "said").open("wb") as said:
            return subprocess.Popen(
                [os.path.join(os.path.dirname(sys.executable), "mendgraph"), *words.split(), *where.split()],
                cwd=self._base,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
            )

    def _pause(self, family: Family, seconds: float) -> None:
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            time.sleep(min(_LOOK_S, left))
            family.look()

    def _asked(self) -> dict[str, int]:
        """How often each task has asked its model."""
        asked: dict[str, int] = httpx2.get(f"{self._url}{COUNTS}{self._name}", trust_env=False).json()
        return asked

    def _said(self) -> str:
        return Path(self._base, "said").read_text("utf-8", "replace")[-500:]

    def _new_node(self, number: int) -> dict[str, str]:
        return {**self._node, DATA_DIR_VARIABLE: f"{self._base}/node-{number}-data"}

    def _names(self) -> list[str]:
        return [f"{self._name}-{number}" for number in range(self._tasks)]

    # --- Whether each task was done exactly once

    def _problems(self, results: list[TaskResult]) -> Iterator[str]:
        lines, names = Counter(each.id for each in results), self._names()
        yield from (f"{name} has {lines[name]} results" for name in names if lines[name] != 1)
        if strangers := set(lines) - set(names):
            yield f"results of unknown tasks: {sorted(strangers)[:MOST_TOLD]}"
        asked = self._asked()
        for each in results:
            calls, cut = asked.get(each.id, 0), each.resumed or each.tries > 1
            if each.kind is not OutcomeKind.FINISHED or not Path(self._out, each.patch).is_file():
                yield f"{each.id} ended {each.kind.value} with the patch {each.patch!r}: {each.error or each.message}"
            if not (CALLS <= calls <= CALLS + (self._kills if cut else 0)):
                yield f"{each.id} asked its model {calls} times instead of {CALLS}"
            for path, text in changed_files().items():
                if Path(each.copy_path, path).read_text("utf-8") != text:
                    yield f"{each.id}: {path} is not as it should be"


class _Kill(NamedTuple):
    """A kill some seconds after so many calls of models: of the batch itself, or of a worker or node."""

    calls: float
    later_s: float
    everything: bool


def measure_batch(series: Series, url: str, store_url: str | None, tasks: int) -> Point:
    """One batch of so many tasks, in folders that are removed again."""
    with ExitStack() as stack:
        return Batch(series, url, store_url, tasks, stack).measure()


def _repository(folder: Path) -> None:
    for path, text in files().items():
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, "utf-8")
    for words in ("init -q", "add .", "-c user.name=a -c user.email=a@example.org commit -qm first"):
        subprocess.run(["git", *words.split()], cwd=folder, check=True)


def _kept(base: Path, names: str) -> int:
    """The bytes of these folders, as they are allocated on the disk."""
    return sum(
        path.lstat().st_blocks * 512
        for folder in base.glob(names)
        for path in folder.rglob("*")
        if not path.is_symlink() and path.is_file()
    )
