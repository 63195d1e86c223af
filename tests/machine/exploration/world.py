"""Where a play happens: a workspace, what lies beside it, tools whose effects are counted, and a fuse to kill it with.

What a killed process leaves is its disk: the workspace, the data folder and the checkpoints. All else is dropped.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, Final

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.base import SerializerProtocol

from mendgraph.graph.machine.serializer import serializer
from mendgraph.graph.persistence.checkpoint_saver import SqliteStoreSaver
from mendgraph.graph.persistence.store import Store
from mendgraph.nodes.execute_tools.registry import Tool, ToolContext, ToolOutput, tool
from mendgraph.nodes.execute_tools.tools import default_tools
from mendgraph.nodes.records import Effect
from mendgraph.nodes.workspace.journal.journal import Journal
from mendgraph.nodes.workspace.store.run_folder import DATA_DIR_VARIABLE
from tests.doubles.model_clock import set_clock
from tests.machine.exploration.alphabet import FILES
from tests.surfaces.runs.run_plays import Killed
from tests.workspace_files import write_files

SECRET: Final = "kestrel-77-quartz-lantern"  # noqa: S105 - of nobody
"""What the machine is told to be a secret: people and models say it, and nothing keeps it."""
HIDDEN: Final = "swordfish"
"""What stands in a denied file."""
WORDS: Final = (SECRET.encode(), HIDDEN.encode())
MAY_CHANGE: Final = frozenset({"calc.py", "made"})
"""What the letters change, and nothing denies."""
OUTSIDE: Final = "not of the workspace\n"

POINTS: Final = (
    "model",
    "put",
    "put_writes",
    "tool begins",
    "tool done",
    "journal begin",
    "journal begun",
    "journal end",
    "journal ended",
    "change intended",
    "change made",
)
"""Where a process can be killed, besides between two nodes."""


UNDISTURBING: Final = frozenset({"model", "put", "put_writes"})
"""Points at which no effect can be in the middle: what comes after them is what would have come without them."""


class KilledInTool(KeyboardInterrupt):
    """The process is killed in the middle of a call. Any other exception of a tool is the result of its call."""


class Fuse:
    """Kills the process when it comes to a place for the n-th time."""

    def __init__(self) -> None:
        self.point, self.countdown = "", 0

    def set(self, point: str, nth: int) -> None:
        """Wait for this place; "" is none."""
        self.point, self.countdown = point, nth

    def burn(self, point: str) -> None:
        if not point or point != self.point:
            return
        self.countdown -= 1
        if self.countdown <= 0:
            self.point = ""
            raise Killed if point in UNDISTURBING else KilledInTool


class World:
    """One play's folders and effects. `rung` counts the effects of the tool `ring` by their marks."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.root, self.data = folder, folder / "root", folder / "data"
        self.fuse = Fuse()
        self.rung: Counter[str] = Counter()
        write_files(self.root, FILES)
        write_files(folder, {"outside.txt": OUTSIDE})

    @cached_property
    def tools(self) -> tuple[Tool, ...]:
        """All tools of a real run, and two whose effects can be counted: one outside of all files, one in a file."""

        @tool(effect=Effect.EXECUTE)
        def ring(mark: str) -> ToolOutput:
            """Ring a bell, which nobody can take back."""
            self.fuse.burn("tool begins")
            self.rung[mark] += 1
            self.fuse.burn("tool done")
            return ToolOutput.ok(mark=mark)

        @tool(effect=Effect.WRITE)
        def stamp(context: ToolContext, mark: str) -> ToolOutput:
            """Write a file, and say so."""
            self.fuse.burn("tool begins")
            self.rung[mark] += 1
            context.workspace.write_file(f"made/{mark}", mark.encode(), expected_sha256="")
            self.fuse.burn("tool done")
            return ToolOutput.ok(mark=mark)

        return (*default_tools(), ring, stamp)

    def files(self) -> dict[str, str]:
        return {
            path.relative_to(self.root).as_posix(): path.read_text(encoding="utf-8")
            for path in sorted(self.root.rglob("*"))
            if path.is_file()
        }

    def appended(self) -> Counter[str]:
        path = self.root / "made" / "log.txt"
        return Counter(path.read_text(encoding="utf-8").split() if path.exists() else ())

    def problems(self) -> list[str]:
        files = self.files()
        changed = {name for name in {*files, *FILES} if files.get(name) != FILES.get(name)}
        odd = sorted(name for name in changed if name.split("/")[0] not in MAY_CHANGE)
        beside = {path.name for path in self.folder.iterdir()} - {"root", "data", "outside.txt"}
        if beside or (self.folder / "outside.txt").read_text(encoding="utf-8") != OUTSIDE:
            odd.append(f"outside: {sorted(beside)}")
        return [f"{name} was touched" for name in odd]

    def leaks(self) -> list[str]:
        """The files of the data folder in whose bytes a secret stands."""
        return [
            path.name
            for path in sorted(self.data.rglob("*"))
            if path.is_file() and any(word in path.read_bytes() for word in WORDS)
        ]


class MortalSaver(InMemorySaver):
    """A saver in memory, which serialises as one on a disk does. The process can be killed while it stores."""

    def __init__(self, fuse: Fuse) -> None:
        super().__init__(serde=serializer((SECRET,)))
        self._fuse = fuse

    def put(self, *arguments: Any) -> Any:
        self._fuse.burn("put")
        return super().put(*arguments)

    def put_writes(self, *arguments: Any, **more: Any) -> None:
        self._fuse.burn("put_writes")
        super().put_writes(*arguments, **more)


class Remembering(SerializerProtocol):
    """Reads the same bytes once."""

    def __init__(self, serializer: SerializerProtocol) -> None:
        self._dumps, self._loads = serializer.dumps_typed, lru_cache(None)(serializer.loads_typed)

    def dumps_typed(self, obj: Any) -> tuple[str, bytes]:
        return self._dumps(obj)

    def loads_typed(self, data: tuple[str, bytes]) -> Any:
        return self._loads(data)


class Memory:
    """Where checkpoints stay when a process dies: here in memory. `saver` is that of the process at work."""

    def __init__(self, world: "World") -> None:
        self.saver: InMemorySaver = MortalSaver(world.fuse)

    def reader(self) -> InMemorySaver:
        """A saver of the same checkpoints that remembers what it has read: for those who only look, again and again."""
        saver = InMemorySaver(serde=Remembering(self.saver.serde))
        saver.storage, saver.blobs, saver.writes = self.saver.storage, self.saver.blobs, self.saver.writes
        return saver

    def died(self) -> None:
        """The process is gone with what it had not written, which is nothing here."""

    def close(self) -> None:
        """Close it; nothing is open."""

    def leaks(self) -> list[str]:
        stored = (("checkpoints", self.saver.storage), ("blobs", self.saver.blobs), ("writes", self.saver.writes))
        return [name for name, values in stored if any(word in data for data in _bytes_in(values) for word in WORDS)]


class Database:
    """The database of the workspace, in which sessions keep their threads; otherwise as `Memory`."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self._open()

    def _open(self) -> None:
        self._store = Store(str(self._world.root), (SECRET,))
        assert isinstance(self._store.saver, SqliteStoreSaver)
        self.saver = self._store.saver
        for name in ("put", "put_writes"):
            setattr(self.saver, name, _burn_around(self._world.fuse, getattr(self.saver, name), name, ""))

    def reader(self) -> SqliteStoreSaver:
        return self.saver

    def died(self) -> None:
        self._store.close()
        self._open()

    def close(self) -> None:
        self._store.close()

    def leaks(self) -> list[str]:
        """Where a secret is kept. Rows are compressed, so they are looked at as they are read."""
        with self.saver.cursor(transaction=False) as cursor:
            rows = [*cursor.execute("SELECT type, checkpoint FROM checkpoints")]
            rows += [*cursor.execute("SELECT type, value FROM writes")]
        texts = (str(self.saver.serde.loads_typed(row)).encode() for row in rows)
        return ["a row of the database" for data in texts if any(word in data for word in WORDS)]


def _bytes_in(value: Any) -> Iterator[bytes]:
    if isinstance(value, bytes):
        yield value
    elif isinstance(value, str):
        yield value.encode("utf-8", "replace")
    elif isinstance(value, dict):
        yield from (data for pair in value.items() for part in pair for data in _bytes_in(part))
    elif isinstance(value, list | tuple):
        yield from (data for part in value for data in _bytes_in(part))


@contextmanager
def prepare(world: World) -> Iterator[None]:
    """A data folder of its own, no waiting, and a journal in which the process can be killed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(DATA_DIR_VARIABLE, str(world.data))
        patch.chdir(world.folder)  # where a run that has lost its context would work
        set_clock(patch, 0.0)
        for name, before, after in (
            ("begin", "journal begin", "journal begun"),
            ("end", "journal end", "journal ended"),
            ("intend", "", "change intended"),
            ("settle", "change made", ""),
        ):
            patch.setattr(Journal, name, _burn_around(world.fuse, getattr(Journal, name), before, after))
        yield


def _burn_around(fuse: Fuse, method: Callable[..., Any], before: str, after: str) -> Callable[..., Any]:
    def called(*arguments: Any, **more: Any) -> Any:
        fuse.burn(before)
        result = method(*arguments, **more)
        fuse.burn(after)
        return result

    return called
