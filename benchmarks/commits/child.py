"""Run contestants on the commits of one repository: `python -m benchmarks.commits.child PLAN FOLDER`.

A plan is a JSON file with the repository's git directory, the commits and the planned rows. The process prints each
completed row as a line of JSON.
"""

import json
import os
import sys
import time
import traceback
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from shutil import rmtree
from typing import Any

from benchmarks.commits.history import AbsentError, Commit, Delta, Repository, Workspace, main_file
from benchmarks.commits.result import Row
from benchmarks.commits.script import EDIT, PATCH, Script

RIVALS = ("create_agent", "deepagents")
MODULES = {"default": "ours", "strict": "ours", **dict.fromkeys(RIVALS, "rival")}
"""The module of each contestant."""


def request_of(kind: str, commit: Commit, deltas: list[Delta]) -> str:
    """Return the user's request, which names the main file, quotes the commit's message, or names all files."""
    if kind == "message":
        return commit.message.strip()
    if kind == "names":
        return f"Change `{main_file(deltas)}`."

    names: list[str] = []
    for delta in deltas:
        names += dict.fromkeys((delta.source, delta.path))
    return f"Change {', '.join(f'`{name}`' for name in names)}."


def reproduce(row: Row, commit: Commit, repository: Repository, workspace: Workspace, data: Path) -> None:
    """Check out the parent, let the contestant make the commit, and record the differences in the row."""
    is_rival = row.contestant in RIVALS
    try:
        deltas = repository.deltas(commit, renames=not is_rival)
        workspace.check_out(commit.parent)
    except AbsentError:
        row.apart = "absent"
        return

    run: Callable[..., None] = import_module(f"benchmarks.commits.{MODULES[row.contestant]}").run
    form = EDIT if is_rival and row.form == PATCH else row.form
    request = request_of(row.request, commit, deltas)
    script = Script.of(deltas, form)
    if script.is_oversized:
        row.apart = "oversized"
        return

    os.environ["MENDGRAPH_DATA_DIR"] = str(data)
    start = time.monotonic()
    try:
        run(row, request, script, workspace.root)
    except Exception as error:  # noqa: BLE001 - the table reports any exception of a contestant
        traceback.print_exc()
        row.failure = f"{type(error).__name__}: {error}"

    row.seconds = round(time.monotonic() - start, 3)
    row.differences = workspace.differences(commit.sha)
    rmtree(data, ignore_errors=True)


def main(plan_file: str, folder: str) -> None:
    """Run all rows of a plan."""
    plan: dict[str, Any] = json.loads(Path(plan_file).read_text("utf-8"))
    repository = Repository(Path(plan["repository"]))
    workspace = Workspace(repository, Path(folder, "work"))

    for fields in plan["rows"]:
        row = Row(**fields)
        commit = Commit(row.sha, *plan["commits"][row.sha])
        reproduce(row, commit, repository, workspace, Path(folder, "data"))
        print(json.dumps(row.as_map()), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
