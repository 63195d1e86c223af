"""The `.mendgraph.toml` of a workspace while a command runs in it: what a command puts in its place never counts.

Settings that are there are mounted read-only (`workspace_cover`). Where there are none, nothing can be mounted without
leaving something for the program to see, so what it has made is set aside when it has ended.
"""

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

from nodes.execute_tools.environment.settings_files import SETTINGS_FILE

SET_ASIDE: Final = f"{SETTINGS_FILE}.untrusted"
"""The name of what a command, or somebody else meanwhile, has made in place of the settings. Nobody reads it."""


@contextmanager
def kept_settings(root_fd: int) -> Iterator[None]:
    """Set aside what a command has made in the place of the settings, where none could be made read-only."""
    before = _unmounted(root_fd)
    try:
        yield
    finally:
        if before is not None and _unmounted(root_fd) != before:
            with suppress(OSError):
                os.rename(SETTINGS_FILE, SET_ASIDE, src_dir_fd=root_fd, dst_dir_fd=root_fd)


def _unmounted(root_fd: int) -> int | None:
    """The number of the link in the settings' place, 0 for nothing; None for what can be, and so is, made read-only."""
    try:
        status = os.stat(SETTINGS_FILE, dir_fd=root_fd, follow_symlinks=False)
    except OSError:
        return 0
    return status.st_ino if stat.S_ISLNK(status.st_mode) else None
