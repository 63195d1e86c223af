"""Whether runs can be kept: the data folder, its disk, the workspace's database, and who is at work there."""

import os
import shutil
import sqlite3
from contextlib import closing
from urllib.parse import quote

from mendgraph.graph.doctor.examination import Finding, fine, off, problem, warning
from mendgraph.nodes.execute_tools.files.sandbox import check_workspace
from mendgraph.nodes.execute_tools.store.database import APPLICATION_ID, FILE_NAME, StoreError, check_file
from mendgraph.nodes.execute_tools.store.database_schema import FORMAT
from mendgraph.nodes.execute_tools.store.postgres_url import known_workspace_name, postgres_url, uses_postgres
from mendgraph.nodes.execute_tools.store.run_folder import DATA_DIR_VARIABLE, data_folder, workspace_folder_path
from mendgraph.nodes.execute_tools.store.run_lock import lock_holder
from mendgraph.nodes.records import ToolError

LEAST_BYTES, SOME_BYTES = 100_000_000, 1_000_000_000
"""Free bytes below which runs cannot be kept for long, and below which it is worth a word."""

_ELSEWHERE = f"set {DATA_DIR_VARIABLE} to a folder of your own"


def data() -> Finding:
    """The folder that all is kept in. It is not made by looking at it."""
    try:
        folder = os.path.abspath(data_folder())
    except RuntimeError:
        return problem("there is no home folder", _ELSEWHERE)
    there = folder
    while not os.path.lexists(there):
        there = os.path.dirname(there)
    if not os.path.isdir(there) or not os.access(there, os.W_OK | os.X_OK):
        return problem(f"{there} cannot be written", f"allow yourself to write it, or {_ELSEWHERE}")
    free = shutil.disk_usage(there).free
    found = f"{folder}{'' if there == folder else ' (made by the first run)'}, {free / 1e9:.1f} GB free"
    if free < LEAST_BYTES:
        return problem(found, f"make room, or {_ELSEWHERE}")
    if free < SOME_BYTES:
        return warning(found, "make room: `mendgraph runs prune` forgets old runs")
    return fine(found)


def workspace(root: str, *, read_only: bool) -> Finding:
    """The folder that runs work in."""
    checked = check_workspace(root)
    if isinstance(checked, ToolError):
        return problem(checked.message, "name another folder with --root")
    if not read_only and not os.access(checked, os.W_OK | os.X_OK):
        return warning(f"{checked} cannot be written", "allow it, or use --mode read-only")
    return fine(checked)


def database(root: str) -> Finding:
    """Whether the workspace's database can be read and is whole. It is opened for reading alone."""
    checked = check_workspace(root)
    if isinstance(checked, ToolError):
        return off("not looked at: there is no workspace")
    folder = workspace_folder_path(checked)
    if uses_postgres():
        return _shared(folder)
    path = os.path.join(folder, FILE_NAME)
    if not os.path.lexists(path):
        return off("no run of this folder yet")
    try:
        check_file(path)
        with closing(sqlite3.connect(f"file:{quote(path)}?mode=ro", uri=True, timeout=2.0)) as connection:
            (owner,), (found,) = (
                connection.execute(f"PRAGMA {name}").fetchone() for name in ("application_id", "user_version")
            )
            if owner != APPLICATION_ID or found != FORMAT:
                said = (
                    f"{path} is of format {found}, this version knows {FORMAT}"
                    if owner == APPLICATION_ID
                    else f"{path} is not ours"
                )
                return problem(said, f"move it away, or {_ELSEWHERE}")
            (whole,) = connection.execute("PRAGMA quick_check(1)").fetchone()
            if whole != "ok":
                raise sqlite3.DatabaseError(whole)
            (runs,) = connection.execute("SELECT count(*) FROM runs").fetchone()
    except (sqlite3.Error, StoreError, UnicodeDecodeError) as error:
        remedy = f"put a backup of {path} in its place, or move it away and begin with a new one"
        return problem(f"it is damaged or cannot be read ({error})", remedy)
    size = f"{os.path.getsize(path) / 1e6:.1f} MB"
    return fine(f"{path}: whole, {runs} run{'' if runs == 1 else 's'}, {size}")


def _shared(folder: str) -> Finding:
    try:
        url = postgres_url()
        assert url is not None  # noqa: S101 - who calls has asked
        from mendgraph.nodes.execute_tools.store.postgres_database import look_at

        found = look_at(url, known_workspace_name(folder))
    except StoreError as error:
        reason, _, remedy = str(error).rstrip(".").rpartition(": ")
        return problem(reason, remedy)
    runs = "no run yet" if found.runs is None else f"{found.runs} run{'' if found.runs == 1 else 's'} of this folder"
    said = f"shared store {url.name}: PostgreSQL {found.server}, {runs}, {found.size / 1e6:.1f} MB in all"
    return fine(said)


def at_work(root: str) -> Finding:
    """Who works in this folder now."""
    checked = check_workspace(root)
    folder = "" if isinstance(checked, ToolError) else workspace_folder_path(checked)
    holder = lock_holder(folder) if folder and os.path.isdir(folder) else None
    if holder is None:
        return fine("nobody is at work in this folder")
    if holder.host:
        found = f"run {holder.run_id}, process {holder.pid} on {holder.host}, since {holder.since}"
        return warning(found, "wait for its end, or stop it there")
    found = f"run {holder.run_id}, process {holder.pid}, since {holder.since}"
    return warning(found, f"wait for its end, or stop it: Ctrl-C there, or `kill {holder.pid}`")
