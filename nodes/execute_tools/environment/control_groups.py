"""Control groups (version 2) of sandboxes: the kernel counts what all processes of a group use together.

They are used where we may make some: in a session of systemd's that belongs to the user, and for root outside of
containers. Source: cgroups(7), Documentation/admin-guide/cgroup-v2.rst; measured with Linux 6.1.
"""

import functools
import itertools
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final, Self

CGROUPS: Final = "/sys/fs/cgroup"
_NEEDED: Final = {"memory", "pids"}
_OURS: Final = re.compile(r"mendgraph-([0-9]+)-.*")


class ControlGroup:
    """A control group of one sandbox."""

    _numbers = itertools.count()

    def __init__(self, folder: str) -> None:
        self._folder = folder

    @classmethod
    def made_for(cls, process: int, *, processes: int, memory_bytes: int) -> Self | None:
        """A group with these limits that holds this process; None where we may not make one."""
        parent = group_parent()
        if parent is None:
            return None
        made = cls(f"{parent}/mendgraph-{os.getpid()}-{next(cls._numbers)}")
        try:
            os.mkdir(made._folder)
            made._write("pids.max", processes)
            made._write("memory.max", memory_bytes)
            made._write("memory.oom.group", 1)
            with suppress(OSError):  # a kernel without swap
                made._write("memory.swap.max", 0)
            made._write("cgroup.procs", process)
        except OSError:
            made.remove()
            return None
        return made

    def events(self, controller: str, name: str) -> int:
        """How often this has happened."""
        counts = dict(line.split() for line in self._read(f"{controller}.events").splitlines())
        return int(counts.get(name, 0))

    def most_memory(self, otherwise: int) -> int:
        """The most memory that was used, which kernels before 5.19 do not tell."""
        return int(self._read("memory.peak") or otherwise)

    def remove(self) -> None:
        """Take it away; its processes have to be gone."""
        with suppress(OSError):
            os.rmdir(self._folder)

    def _write(self, name: str, value: int) -> None:
        Path(self._folder, name).write_text(str(value))

    def _read(self, name: str) -> str:
        with suppress(OSError):
            return Path(self._folder, name).read_text()
        return ""


@functools.cache
def group_parent() -> str | None:
    """The nearest control group in which we may make others that count processes and memory.

    What a run that was killed has left there is taken away, as far as the kernel allows it.
    """
    for folder in own_groups():
        with suppress(OSError):
            counted = set(Path(folder, "cgroup.subtree_control").read_text().split()) >= _NEEDED
            if counted and all(os.access(name, os.W_OK) for name in (folder, f"{folder}/cgroup.procs")):
                _remove_leftovers(folder)
                return folder
    return None


def _remove_leftovers(folder: str) -> None:
    for left in Path(folder).iterdir():
        ours = _OURS.fullmatch(left.name)
        if ours is not None and not os.path.exists(f"/proc/{ours[1]}"):
            with suppress(OSError):
                left.rmdir()


def own_groups() -> Iterator[str]:
    """The folder of our control group (of version 2), and those above it."""
    with suppress(OSError):
        own = next((line[3:] for line in Path("/proc/self/cgroup").read_text().splitlines() if line[:3] == "0::"), "/")
        place = Path(f"{CGROUPS}{own}")
        yield from (str(each) for each in (place, *place.parents) if str(each).startswith(CGROUPS))
