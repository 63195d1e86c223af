"""One contestant on the commits of one repository: `python -m benchmarks.commits.child PLAN PLACE` prints a row a run.

A plan is a file of JSON: the repository's git directory, and rows that say what is to be tried.
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
    """What the user asks for: to change the main file, all files, or what the commit's message says."""
    if kind == "message":
        return commit.message.strip()
    if kind == "names":
        return f"Change `{main_file(deltas)}`."
    return f"Change {', '.join(f'`{path}`' for each in deltas for path in dict.fromkeys((each.source, each.path)))}."


def make_again(row: Row, commit: Commit, repository: Repository, workspace: Workspace, data: Path) -> None:
    """Check out the parent, let the contestant make the commit, and compare."""
    is_rival = row.contestant in RIVALS
    try:
        deltas = repository.deltas(commit, renames=not is_rival)
        workspace.check_out(commit.parent)
    except AbsentError:
        row.apart = "absent"
        return

    run: Callable[..., None] = import_module(f"benchmarks.commits.{MODULES[row.contestant]}").run
    form = EDIT if is_rival and row.form == PATCH else row.form
    request, script = request_of(row.request, commit, deltas), Script.of(deltas, form)
    if script.is_oversized:
        row.apart = "oversized"
        return

    os.environ["MENDGRAPH_DATA_DIR"] = str(data)
    start = time.monotonic()
    try:
        run(row, request, script, workspace.place)
    except Exception as error:  # noqa: BLE001 - what a contestant raises is a result of the table
        traceback.print_exc()
        row.failure = f"{type(error).__name__}: {error}"

    row.seconds = round(time.monotonic() - start, 3)
    row.differences = workspace.differences(commit.sha)
    rmtree(data, ignore_errors=True)


def main(plan: str, place: str) -> None:
    """Try all rows of a plan."""
    tasks: dict[str, Any] = json.loads(Path(plan).read_text("utf-8"))
    repository = Repository(Path(tasks["repository"]))
    workspace = Workspace(repository, Path(place, "work"))

    for task in tasks["rows"]:
        row = Row(**task)
        commit = Commit(row.sha, *tasks["commits"][row.sha])
        make_again(row, commit, repository, workspace, Path(place, "data"))
        print(json.dumps(row.as_map()), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
