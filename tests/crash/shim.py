"""The library that ends or fails a process at its n-th call that changes a file: how it is built and told what to do.

library = built(folder)                    # then start a program with LD_PRELOAD=library, and in it:
shim = Shim()
shim.arm(37, "kill_before")
"""

import ctypes
import errno
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final, Literal

How = Literal["kill_before", "kill_within", "kill_after", "short", "EIO", "ENOSPC", "EIO_on", "ENOSPC_on"]
"""What happens at the call.

- `kill_before`, `kill_after`: SIGKILL in front of it, or when it is done; `kill_within`: after half of a write
  (at any other call like `kill_after`).
- `short`: half of a write is written and said to be written; nothing happens at any other call.
- `EIO`, `ENOSPC`: this one call fails. With `_on` the disk stays so: from this call on all fail that write, sync,
  cut, or make something new; what renames, removes or changes modes goes on working.
"""

KILL_BEFORE, KILL_AFTER, HALF, FAIL, FROM_THEN_ON = 1, 2, 4, 8, 16
MODES: Final[dict[How, tuple[int, int]]] = {
    "kill_before": (KILL_BEFORE, 0),
    "kill_within": (HALF | KILL_AFTER, 0),
    "kill_after": (KILL_AFTER, 0),
    "short": (HALF, 0),
    "EIO": (FAIL, errno.EIO),
    "ENOSPC": (FAIL, errno.ENOSPC),
    "EIO_on": (FAIL | FROM_THEN_ON, errno.EIO),
    "ENOSPC_on": (FAIL | FROM_THEN_ON, errno.ENOSPC),
}

SOURCE: Final = Path(__file__).with_name("shim.c")
COMPILERS: Final = ("cc", "gcc", "clang")
OPTIONS: Final = ("-shared", "-fPIC", "-O1", "-U_FORTIFY_SOURCE", "-Wall", "-Wno-nonnull-compare")
"""Fortified headers would call other names than ours. glibc's say that paths are never NULL; ours may be."""


def compiler() -> str | None:
    """The C compiler's path, or None."""
    return next(filter(None, map(shutil.which, COMPILERS)), None)


def missing_requirement() -> str:
    """Why the library cannot be built on this machine; "" where it can."""
    if sys.platform != "linux":
        return "it is preloaded the way Linux does it"
    return "" if compiler() else f"there is no C compiler ({', '.join(COMPILERS)}) on the path: install gcc"


def build(folder: Path) -> Path:
    """Build the library into the folder and return its path."""
    library = folder / "shim.so"
    command = [compiler() or "cc", *OPTIONS, "-o", str(library), str(SOURCE), "-ldl"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return library


class Shim:
    """The library, used inside a process that was started with it."""

    def __init__(self) -> None:
        """Raises AttributeError where the library was not preloaded."""
        self._library = ctypes.CDLL(None)
        self._library.shim_arm.argtypes = (ctypes.c_long, ctypes.c_int, ctypes.c_int)
        self._library.shim_call.argtypes = (ctypes.c_long,)
        self._library.shim_call.restype = ctypes.c_char_p
        self._library.shim_count.restype = self._library.shim_hit.restype = ctypes.c_long

    def arm(self, at: int | None, how: How) -> None:
        """Count this process's calls from now on, beginning with 1; `how` happens at this one, or nothing."""
        self._library.shim_arm(at or 0, *MODES[how])

    def disarm(self) -> None:
        self._library.shim_disarm()

    def clear(self) -> None:
        """Forget the figures. A process and those that it forks have them in common."""
        self._library.shim_clear()

    @property
    def hit(self) -> bool:
        return bool(self._library.shim_hit())

    @property
    def calls(self) -> list[str]:
        """The counted calls, oldest first, each with the last part of the name that it changes."""
        turns = range(1, self._library.shim_count() + 1)
        return [self._library.shim_call(turn).decode(errors="replace") for turn in turns]
