"""A run that begins with another one's conversation can read the results that this one has kept."""

import os
import shutil
from contextlib import suppress
from typing import Final

from nodes.execute_tools.environment.run_folder import run_folder, run_folder_path
from nodes.records import ToolError

_PREFIX: Final = "results-"
"""Begins the name of a folder of kept results, of which a run has one for each workspace."""


def copy_kept_results(run_id: str, new_run_id: str) -> None:
    """Copy what a run has kept into the folder of another one.

    Where that cannot be done, be it that the disk is full, the other run is told that these results are not there, as
    it is of any result that could not be kept.
    """
    with suppress(OSError, shutil.Error):
        with os.scandir(run_folder_path(run_id)) as entries:
            names = [each.name for each in entries if each.name.startswith(_PREFIX) and not each.is_symlink()]
        target = run_folder(new_run_id) if names else None
        if target is None or isinstance(target, ToolError):
            return
        for name in names:
            shutil.copytree(os.path.join(run_folder_path(run_id), name), os.path.join(target, name), symlinks=True)
