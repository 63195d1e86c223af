"""A batch that is killed at random moments and restarted: tasks run once, patches are right, no call is repeated."""

import json
import random
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import pytest

from mendgraph.nodes.records import JsonMap
from mendgraph.nodes.workspace.store.run_lock import written_owner
from tests.crash import batch_play
from tests.crash.batch_play import TASKS, number_of
from tests.crash.fork_server import ForkServer, PlayResult
from tests.doubles.replies import Reply
from tests.doubles.scripted_server import ScriptedServer
from tests.extent import slow
from tests.memory_folder import memory_folder
from tests.workspace_files import write_files

KILLS: Final = 10
SEED: Final = 9
STANDBY_KILLS: Final = 2
"""Each process imports the product, which is five seconds of CPU."""
CALLS_OF_A_TASK: Final = 3

pytestmark = [slow, pytest.mark.skipif(shutil.which("git") is None, reason="there is no git: install it")]


@pytest.fixture(scope="module")
def server(shim_library: Path) -> Iterator[ForkServer]:
    with ForkServer(shim_library, "tests.crash.batch_play", timeout=120) as started:
        yield started


class Place:
    """A repository, a batch with copies of it, and in memory the records of its runs."""

    def __init__(self, folder: Path, memory: Path, model: ScriptedServer) -> None:
        self.repository, self.out, self._model = folder / "repository", folder / "out", model
        write_files(self.repository, batch_play.files())
        for words in ("init -q", "add .", "-c user.name=a -c user.email=a@example.org commit -qm first"):
            subprocess.run(["git", *words.split()], cwd=self.repository, check=True)
        places = {"repository": self.repository, "out": self.out, "data": memory / folder.name / "data"}
        self.argument = {**{name: str(path) for name, path in places.items()}, "base_url": model.base_url}

    def results(self) -> dict[str, dict[str, object]]:
        """The results by id, each exactly once; an incomplete line does not count."""
        path = self.out / "results.jsonl"
        text = path.read_text() if path.exists() else ""
        lines = [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]
        results = {line["id"]: line for line in lines}
        assert len(results) == len(lines)
        return results

    def patches(self) -> dict[str, str]:
        return {path.stem: path.read_text() for path in sorted((self.out / "patches").glob("[!.]*"))}

    def calls(self) -> Counter[int]:
        return Counter(map(number_of, self._model.requests))


def test_batch_killed_ten_times_has_the_same_result_as_an_undisturbed_one(server: ForkServer, tmp_path: Path) -> None:
    ids = {f"t{number}" for number in range(TASKS)}
    with memory_folder() as memory, ScriptedServer(then=batch_play.answer) as model:
        reference = Place(tmp_path / "whole", memory, model)
        undisturbed = server.run("start", reference.argument)
        assert undisturbed.value == {"end": "complete", "done": TASKS, "finished": TASKS}
        assert set(reference.calls().values()) == {CALLS_OF_A_TASK}
        assert set(reference.patches()) == ids

        model.requests.clear()
        torn, choice, played = Place(tmp_path / "torn", memory, model), random.Random(SEED), list[PlayResult]()
        for _ in range(KILLS):
            before, calls_before = torn.results(), torn.calls()
            at = choice.randint(1, 2 * undisturbed.calls // KILLS)
            played.append(server.run("start", torn.argument, at, choice.choice(["kill_before", "kill_within"])))
            after = torn.results()
            assert {task: after[task] for task in before} == before
            assert all(torn.calls()[int(task[1:])] == calls_before[int(task[1:])] for task in before)
        assert sum(run.killed for run in played) >= KILLS - 2
        last = server.run("start", torn.argument)
        assert last.value == {"end": "complete", "done": TASKS, "finished": TASKS}

        results = torn.results()
        assert set(results) == ids
        assert torn.patches() == reference.patches()
        assert {result["kind"] for result in results.values()} == {"FINISHED"}
        assert any(result["resumed"] for result in results.values())
        assert torn.calls().total() <= CALLS_OF_A_TASK * TASKS + 3 * KILLS  # three were active when it was killed
        again = server.run("start", torn.argument)
        assert again.value == last.value


def test_standby_process_continues_the_batch_of_a_killed_one(tmp_path: Path) -> None:
    """The active process is killed twice, and one more process stands by each time."""
    folder = Path(__file__).parents[2]

    def answer(request: JsonMap) -> Reply:
        time.sleep(0.1)
        return batch_play.answer(request)

    with memory_folder() as memory, ScriptedServer(then=answer) as model, ExitStack() as ended:
        place = Place(tmp_path / "three", memory, model)
        command = [sys.executable, "-m", "tests.crash.batch_play", json.dumps({**place.argument, "standby": "yes"})]

        def one_more() -> "subprocess.Popen[bytes]":
            process = ended.enter_context(subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE))
            ended.callback(process.kill)
            return process

        three = [one_more() for _ in range(3)]
        for kill in range(STANDBY_KILLS):
            latest = time.monotonic() + 60
            while len(model.requests) < 5 * (kill + 1) and time.monotonic() < latest:
                time.sleep(0.05)
            holder = written_owner(str(place.out), "batch.lock")
            assert holder is not None
            [killed] = [process for process in three if process.pid == holder.pid]
            killed.kill()
            three.remove(killed)
            three.append(one_more())
        for process in three:
            output, _ = process.communicate(timeout=120)
            assert json.loads(output) == {"end": "complete", "done": TASKS, "finished": TASKS}, place.results()
        assert {result["kind"] for result in place.results().values()} == {"FINISHED"}
        assert set(place.patches()) == {f"t{number}" for number in range(TASKS)}
        assert place.calls().total() <= CALLS_OF_A_TASK * TASKS + 3 * STANDBY_KILLS
