"""A second process that swaps names in a workspace for links that lead out, as fast as it can.

`door` is a directory and a link to `../outside` in turn; `leaf.txt` is a file and a link to `../outside/f.txt` in turn.
The program needs nothing but the standard library, so that it starts at once.
"""

import ctypes
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

CANARY, ONLY_OUTSIDE = "canary-of-the-outside", "only-outside.txt"
"""Texts that no result may contain: a word of the files outside, and a name that exists only there."""
INSIDE, OUTSIDE = b"MARK fine\n", f"MARK {CANARY}\n".encode()
SWAPS, REST_S = 301, 0.008
"""The swaps of a burst, and the pause after it in seconds, in which a tool that starts programs can finish."""
LONGER_AFTER_S = 10.0
"""The pause grows by `REST_S` in each such period, because a busy machine may not run a tool during a short one."""
_EXCHANGE, _HERE = 2, -100
"""Source: <linux/fs.h> RENAME_EXCHANGE, <fcntl.h> AT_FDCWD."""


def build(base: Path) -> Path:
    """The workspace `root` in `base`, and beside it `outside`, in which the same names and one more stand."""
    root, outside = base / "root", base / "outside"
    outside.mkdir()
    (outside / "f.txt").write_bytes(OUTSIDE)
    (outside / ONLY_OUTSIDE).write_bytes(OUTSIDE)
    (root / "door").mkdir(parents=True)
    (root / "door" / "f.txt").write_bytes(INSIDE)
    (root / "door-link").symlink_to(outside)
    (root / "leaf.txt").write_bytes(INSIDE)
    return root


@contextmanager
def swapping(root: Path) -> Iterator[None]:
    """Swap the names in another process during the block."""
    argv = [sys.executable, "-I", "-S", __file__, str(root)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, cwd="/") as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"swapping\n"
            yield
            assert process.poll() is None, "the swapper ended by itself"
        finally:
            process.kill()


def door_swapper(root: str) -> Callable[[], None]:
    """Exchange the two names in one atomic step if the system can, so that both always exist."""
    door, link = os.fsencode(f"{root}/door"), os.fsencode(f"{root}/door-link")
    renameat2: Callable[..., int] = getattr(ctypes.CDLL(None), "renameat2", lambda *_: -1)

    def exchange() -> None:
        renameat2(_HERE, door, _HERE, link, _EXCHANGE)

    def rename() -> None:
        os.rename(door, door + b"-away")
        os.rename(link, door)
        os.rename(door, link)
        os.rename(door + b"-away", door)

    return exchange if renameat2(_HERE, door, _HERE, link, _EXCHANGE) == 0 else rename


def leaf_swapper(root: str) -> Callable[[], None]:
    """Replace the name by a link and by a file in turn; a tool that replaces it does not stop the swaps."""
    leaf, new = f"{root}/leaf.txt", f"{root}/leaf-new"

    def swap() -> None:
        os.symlink("../outside/f.txt", new)
        os.rename(new, leaf)
        with open(new, "wb") as file:
            file.write(INSIDE)
        os.rename(new, leaf)

    return swap


def main(root: str) -> None:
    """Swap until the process is killed."""
    swap_door, swap_leaf = door_swapper(root), leaf_swapper(root)
    start = time.monotonic()
    sys.stdout.write("swapping\n")
    sys.stdout.flush()
    while True:
        for _ in range(SWAPS):
            swap_leaf()
            for _ in range(3):  # an odd number: it is each of both for about as long
                swap_door()
        time.sleep(REST_S * (1 + (time.monotonic() - start) / LONGER_AFTER_S))


if __name__ == "__main__":
    main(sys.argv[1])
