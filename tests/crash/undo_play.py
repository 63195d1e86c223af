"""The undo that is killed at every point: files are restored, reverted and removed, and replace each other."""

from pathlib import Path
from typing import Any

from mendgraph.nodes.workspace.files.workspace import DeleteFile, MoveFile, WriteFile
from mendgraph.nodes.workspace.journal.recovery import recover
from mendgraph.nodes.workspace.journal.restoring import Restored, restore
from mendgraph.nodes.workspace.store.database import StoreError
from tests.workspace.files.journaled_runs import World, swap
from tests.workspace.files.layout import sha

BEFORE = {
    "a": (b"a", 0o644),
    "d/a": (b"x", 0o444),
    "d/b": (b"y", 0o755),
    "old": (b"old", 0o600),
    "gone": (b"gone", 0o640),
}


def prepare(folder: Path) -> World:
    """A workspace with these files, unchanged so far."""
    folder.mkdir(exist_ok=True)
    world = World(folder)
    for name, (data, mode) in BEFORE.items():
        (world.root / name).parent.mkdir(exist_ok=True)
        (world.root / name).write_bytes(data)
        (world.root / name).chmod(mode)
    return world


def change(world: World) -> None:
    """All kinds of changes; a file and a directory replace each other."""
    world.command(1, lambda root: swap(root, "a/b/c", b"new"))
    world.command(2, lambda root: swap(root, "d", b"file"))
    world.done(3, MoveFile("old", "made/in/here", sha(b"old")), WriteFile("made/too", b"new"))
    world.done(4, DeleteFile("gone", sha(b"gone")), WriteFile("a/b/c", b"newer", sha(b"new"), 0o755))


def undo(folder: str) -> dict[str, Any]:
    """As the command does it: recover open changes, then undo the run."""
    world = World(Path(folder))
    try:
        for change in recover(world.journal, str(world.root)):
            if change.state == "intended":
                return {"error": change.sentence}
    except StoreError as error:
        return {"error": str(error)}
    done = restore(world.journal, world.workspace, "run")
    return {"left": [file.path for file in done.left]} if isinstance(done, Restored) else {"error": done.message}
