"""An undo that is killed or fails at every point, and is repeated: the whole workspace is as before the run."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.crash.fork_server import ForkServer
from tests.crash.shim import How
from tests.crash.sweep import Point, calls_to_visit, servers_of, sweep
from tests.crash.undo_play import change, prepare
from tests.extent import LEVEL, sampled
from tests.memory_folder import memory_folder
from tests.workspace.files.journaled_runs import tree


class Scene:
    """A workspace after a run, to be copied for each point; `before` are its files before the run."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        world = prepare(folder / "whole")
        self.before = tree(world.root)
        change(world)

    def copy(self, name: str) -> Path:
        return Path(shutil.copytree(self._folder / "whole", self._folder / name, symlinks=True))


@pytest.fixture(scope="module")
def servers(shim_library: Path) -> Iterator[list[ForkServer]]:
    with servers_of(shim_library, "tests.crash.undo_play") as started:
        yield started


@pytest.fixture(scope="module")
def scene() -> Iterator[Scene]:
    with memory_folder() as folder:
        yield Scene(folder)


@pytest.fixture(scope="module")
def trace(servers: list[ForkServer], scene: Scene) -> tuple[str, ...]:
    copy = scene.copy("undone")
    played = servers[0].run("undo", str(copy))
    assert played.value == {"left": []}
    assert tree(copy / "root") == scene.before
    return played.trace


@sampled
@pytest.mark.parametrize("how", ["kill_after", "EIO", "ENOSPC_on"] if LEVEL else ["kill_after"])
def test_undo_interrupted_at_any_point_can_be_repeated(
    servers: list[ForkServer], scene: Scene, trace: tuple[str, ...], how: How
) -> None:
    def play(server: ForkServer, point: Point) -> None:
        folder = scene.copy(str(point))
        first = server.run("undo", str(folder), point.at, point.how)
        assert first.killed or first.value == {"left": []} or first.value["error"]
        second = server.run("undo", str(folder))
        assert second.value == {"left": []}
        assert tree(folder / "root") == scene.before
        shutil.rmtree(folder)

    every = [Point(how, at) for at in calls_to_visit(trace, failing=True)]
    sweep(every, play, servers)
