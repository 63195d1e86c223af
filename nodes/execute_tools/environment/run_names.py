"""The runs of a workspace by their names alone, for completion in a shell: fast, and nothing is written."""

import os
import sqlite3
from contextlib import closing, suppress
from typing import Final
from urllib.parse import quote

from nodes.execute_tools.environment.database import FILE_NAME, StoreError, check_file
from nodes.execute_tools.environment.run_folder import workspace_folder_path
from nodes.execute_tools.environment.shared_name import known_shared_name
from nodes.execute_tools.environment.shared_url import shared_url

MOST_NAMES: Final = 200

_WAIT_S: Final = 0.2
"""A shell waits for its completion."""


def run_names(root: str, base: str | None = None) -> list[tuple[str, str]]:
    """The newest runs of the workspace at `root`, each with its task; none where they cannot be read.

    `base` as in `run_folder`.
    """
    with suppress(sqlite3.Error, StoreError, OSError, RuntimeError):
        folder = workspace_folder_path(root, base)
        url, path = shared_url(), os.path.join(folder, FILE_NAME)
        if url is not None:
            from nodes.execute_tools.environment.shared_look import names_of_runs

            workspace = known_shared_name(folder)
            return names_of_runs(url, workspace, MOST_NAMES) if workspace else []
        if os.path.isfile(path):
            # Beside a log of changes its files are there already; without one SQLite would make some to look.
            way = "mode=ro" if os.path.exists(f"{path}-wal") else "immutable=1"
            check_file(path)
            with closing(sqlite3.connect(f"file:{quote(path)}?{way}", timeout=_WAIT_S, uri=True)) as database:
                found = database.execute(
                    "SELECT run_id, task FROM runs ORDER BY updated DESC, id DESC LIMIT ?", (MOST_NAMES,)
                )
                return [(str(run_id), str(task)) for run_id, task in found]
    return []
