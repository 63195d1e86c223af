"""A batch on a Ray cluster of two nodes; a node, or the process that started the batch, is lost in the middle."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

import psycopg
import pytest

from mendgraph import TaskResult
from mendgraph.graph.fleet.batch.batch_folder import read_results
from mendgraph.graph.fleet.batch.executors import POLL_S
from mendgraph.nodes.workspace.files.deadline import monotonic_s, pause
from mendgraph.nodes.workspace.store.database import STORE_URL_VARIABLE
from mendgraph.nodes.workspace.store.run_folder import known_workspace_name
from tests.crash.batch_play import number_of
from tests.doubles.replies import Calls, Reply, Say
from tests.doubles.scripted_server import ScriptedServer
from tests.extent import slow
from tests.postgres import fresh_database
from tests.surfaces.batch.batching import apply_patch
from tests.surfaces.batch.ray_nodes import RayNodes, needs_ray, ray_nodes
from tests.vocabulary import JsonMap
from tests.workspace_files import write_files

pytestmark = [slow, needs_ray]

TASKS: Final = 40
WORKERS: Final = 4
FEW: Final = 2
LONGEST_S: Final = 120.0
DONE: Final = ("edit_file", "write_file")
LAST: Final = len(DONE)


class Model:
    """Edits a file, writes another, and answers; once so much is done it waits until the test lets it go on.

    `request_counts` has the requests by task and by what was done before. An edit made twice leaves another file.
    """

    def __init__(self) -> None:
        self.go_on, self.may_end, self.waits_at = threading.Event(), threading.Event(), LAST
        self.may_end.set()
        self._request_counts: Counter[tuple[int, int]] = Counter()
        self._lock = threading.Lock()

    @property
    def request_counts(self) -> dict[tuple[int, int], int]:
        with self._lock:
            return dict(self._request_counts)

    def answer(self, request: JsonMap) -> Reply:
        task, done = number_of(request), sum(call_of(message) in DONE for message in request["messages"])
        with self._lock:
            self._request_counts[task, done] += 1
        if done == self.waits_at:
            self.go_on.wait(LONGEST_S)
        if done == LAST:
            self.may_end.wait(LONGEST_S)
        if done == 0:
            change = {"path": f"old{task}.txt", "old_str": "two", "new_str": "two, two"}
            return Calls([("edit_file", json.dumps(change))])
        if done == 1:
            return Calls([("write_file", json.dumps({"path": f"new{task}.txt", "content": "made\n"}))])
        return Say(f"Done {task}.")

    def waiting(self, times: int = 1) -> set[int]:
        """The tasks that have asked this often for what it waits with."""
        return {task for (task, done), count in self.request_counts.items() if done == self.waits_at and count >= times}


class Place(NamedTuple):
    """A cluster, its shared store, and the folders that its two nodes have for themselves."""

    nodes: RayNodes
    store: str
    disks: tuple[Path, Path]


@pytest.fixture(scope="module")
def place(postgres: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    base = tmp_path_factory.mktemp("nodes")
    disks = (base / "first", base / "second")
    with fresh_database(postgres) as url:
        environments = [
            {STORE_URL_VARIABLE: url, "MENDGRAPH_DATA_DIR": f"{disk}/data", "OPENAI_API_KEY": "k"} for disk in disks
        ]
        with ray_nodes(environments) as nodes:
            yield Place(nodes, url, disks)


@pytest.fixture
def model() -> Model:
    return Model()


@pytest.fixture
def server(model: Model) -> Iterator[ScriptedServer]:
    with ScriptedServer(then=model.answer) as endpoint:
        yield endpoint
        model.go_on.set()
        model.may_end.set()


class Command(NamedTuple):
    """`mendgraph batch ... --on ray`, ready to be started; each start goes on with the same batch."""

    words: list[str]
    environment: dict[str, str]
    out: Path
    project: Path

    def begin(self) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            [f"{os.path.dirname(sys.executable)}/mendgraph", *self.words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=self.environment,
        )

    def results(self) -> dict[int, TaskResult]:
        return {int(result.id[1:]): result for result in read_results(str(self.out))}


def command(tmp_path: Path, place: Place, base_url: str, count: int) -> Command:
    project = write_repository(tmp_path / "project")
    file, out = tmp_path / "tasks.jsonl", tmp_path / "out"
    tasks = [
        {"id": f"t{number}", "prompt": f"Task {number}: change old{number}.txt.", "workspace": "project"}
        for number in range(count)
    ]
    file.write_text("".join(json.dumps(task) + "\n" for task in tasks))
    words = f"--base-url {base_url} --model scripted batch {file} --out {out} --workers {WORKERS} --on ray"
    environment = {
        **os.environ,
        STORE_URL_VARIABLE: place.store,
        "MENDGRAPH_DATA_DIR": f"{tmp_path}/data",
        "OPENAI_API_KEY": "k",
    }
    return Command([*words.split(), "--address", place.nodes.address], environment, out, project)


def write_repository(folder: Path) -> Path:
    write_files(folder, {f"old{number}.txt": "one\ntwo\n" for number in range(TASKS)})
    for words in ("init -q", "add .", "-c user.name=a -c user.email=a@example.org commit -qm first"):
        subprocess.run(["git", *words.split()], cwd=folder, check=True)
    return folder


def test_runs_of_a_lost_node_continue_on_another_node(
    tmp_path: Path, place: Place, model: Model, server: ScriptedServer
) -> None:
    batch = command(tmp_path, place, server.base_url, TASKS)
    with batch.begin() as process:
        until(lambda: len(model.waiting()) == WORKERS, process)
        workspaces = map(known_workspace_name, map(str, (place.disks[1] / "data" / "workspaces").iterdir()))
        lost = {int(name.rpartition("/t")[2]) for name in workspaces if name} & model.waiting()
        assert 0 < len(lost) < WORKERS
        place.nodes.kill(1)
        model.go_on.set()
        out, complained = process.communicate(timeout=LONGEST_S)
    assert (process.returncode, "raylet" in out + complained) == (0, False), (out, complained)
    results = batch.results()
    assert sorted(results) == [*range(TASKS)]
    assert {result.kind for result in results.values()} == {"FINISHED"}
    assert {number for number, result in results.items() if result.tries == 2 and result.resumed} == lost
    assert {number for number, result in results.items() if result.tries == 1 and not result.resumed} == (
        {*range(TASKS)} - lost
    )
    once = {(task, done): 1 for task in range(TASKS) for done in range(LAST + 1)}
    assert model.request_counts == once | {(task, LAST): 2 for task in lost}
    for number, result in results.items():
        assert result.changed == (f"new{number}.txt", f"old{number}.txt")
        files = apply_patch(batch.project, batch.out / result.patch)
    old = {f"old{number}.txt": "one\ntwo, two\n" for number in range(TASKS)}
    assert files == old | {f"new{number}.txt": "made\n" for number in range(TASKS)}
    assert effects_in(place.store, next(iter(results.values())).run_id.rpartition("-")[0]) == {
        (f"t{number}", tool): 1 for number in range(TASKS) for tool in DONE
    }


def test_killed_and_cancelled_batch_leaves_no_active_task_and_continues(
    tmp_path: Path, place: Place, model: Model, server: ScriptedServer
) -> None:
    model.waits_at = 1
    model.may_end.clear()  # a task that gets the stop too late does not end its run
    batch = command(tmp_path, place, server.base_url, FEW)
    with batch.begin() as process:
        until(lambda: len(model.waiting()) == FEW, process)
        process.kill()
        process.communicate(timeout=LONGEST_S)
    assert batch.results() == {}
    with batch.begin() as process:
        until(lambda: len(model.waiting(2)) == FEW, process)
        process.send_signal(signal.SIGINT)
        assert process.stderr is not None
        assert process.stderr.readline() == "mendgraph: stopping the running tasks; Ctrl-C again to stop at once\n"
        pause(POLL_S * 4)  # by then the tasks have received it
        model.go_on.set()
        out, complained = process.communicate(timeout=LONGEST_S)
    assert (process.returncode, batch.results()) == (130, {}), (out, complained)
    late = {task for (task, done) in model.request_counts if done == LAST}
    model.may_end.set()
    with batch.begin() as process:
        out, complained = process.communicate(timeout=LONGEST_S)
    assert process.returncode == 0, (out, complained)
    assert {number: (result.answer, result.resumed) for number, result in batch.results().items()} == {
        number: (f"Done {number}.", True) for number in range(FEW)
    }
    often = {(task, done): 3 if done == 1 else 1 for task in range(FEW) for done in range(LAST + 1)}  # killed, dropped
    assert model.request_counts == often | {(task, LAST): 2 for task in late}


def until(reached: Callable[[], bool], process: "subprocess.Popen[str]") -> None:
    latest = monotonic_s() + LONGEST_S
    while not reached():
        assert process.poll() is None, process.communicate()
        assert monotonic_s() < latest
        pause(0.05)


def call_of(message: JsonMap) -> str:
    """The tool that a message of the model calls, "" where it calls none."""
    calls = message.get("tool_calls") or [{"function": {"name": ""}}]
    return str(calls[0]["function"]["name"])


def effects_in(store: str, batch: str) -> dict[tuple[str, str], int]:
    """How often each tool has changed something for each task, as the shared journal has it."""
    with psycopg.connect(store) as connection:
        rows = connection.execute(
            "SELECT changes.workspace, tool FROM mendgraph.all_changes AS changes"
            " JOIN mendgraph.all_calls AS calls ON calls.id = changes.call WHERE changes.workspace LIKE %s",
            (f"batch/{batch}/%",),
        ).fetchall()
    return dict(Counter((str(workspace).rpartition("/")[2], str(tool)) for workspace, tool in rows))
