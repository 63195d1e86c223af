"""What the plain call makes of a spelling: where ours refuses, it has to go wrong, or the refusal shows nothing."""

import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

from tests.nodes.execute_tools.attacks.layouts import SECRET

Control: TypeAlias = Callable[[Path, str], bool]
"""(the workspace, the spelling) -> whether the plain call does what the name says."""


def opens_outside(root: Path, path: str) -> bool:
    """What is opened has its name outside the workspace."""
    descriptor = os.open(os.path.join(root, path), os.O_RDONLY | os.O_NONBLOCK)
    name = os.readlink(f"/proc/self/fd/{descriptor}")
    os.close(descriptor)
    return not f"{name}/".startswith(f"{root}/")


def makes_outside(root: Path, path: str) -> bool:
    """A new file comes to be outside the workspace, and is removed again."""
    descriptor = os.open(os.path.join(root, path), os.O_WRONLY | os.O_CREAT)
    name = os.readlink(f"/proc/self/fd/{descriptor}")
    os.close(descriptor)
    os.unlink(name)
    return not name.startswith(f"{root}/")


def reads_secret(root: Path, path: str) -> bool:
    """The secret is read."""
    return Path(os.path.join(root, path)).read_bytes() == SECRET


def waits(root: Path, path: str) -> bool:
    """The plain call would wait for somebody at the other end, or fails for a socket."""
    return not stat.S_ISREG(os.stat(os.path.join(root, path)).st_mode)


def expands_outside(root: Path, path: str) -> bool:
    """The home of the user is outside the workspace."""
    return not os.path.expanduser(path).startswith(f"{root}/")


def opens_inside(root: Path, path: str) -> bool:
    """The plain call stays inside: it is the spelling that is refused, as it can mean anything."""
    return not opens_outside(root, path)


def always_fails(root: Path, path: str) -> bool:
    """The plain call fails as well: this row shows that the error is a typed one."""
    try:
        os.close(os.open(os.path.join(root, path), os.O_RDONLY | os.O_NONBLOCK))
    except (OSError, ValueError):
        return True
    return False
