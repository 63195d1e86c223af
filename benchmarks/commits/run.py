"""Make the last commits of git repositories again with a scripted, perfect model, and compare the trees byte for byte.

The model reads the files that a commit changes and makes its changes by `edit_file`, `apply_patch` or `write_file`.
Beside mendgraph, with its defaults and with `--strict`, run `create_agent` with deepagents' tools, and deepagents.
Commits with more than one parent are passed over; those that no text tool can make are counted apart, with the reason.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

from benchmarks.commits.child import MODULES, RIVALS
from benchmarks.commits.history import AbsentError, Commit, Repository
from benchmarks.commits.result import Row
from benchmarks.commits.script import FORMS
from benchmarks.commits.tables import report
from benchmarks.overhead.environments import DEVELOPMENT, LANGCHAIN, prepare, python_of
from benchmarks.real_model.child import clean_environment, root_of_project
from mendgraph.nodes.guard.file_rules import check_file_guardrails
from mendgraph.nodes.guard.scope import PROTECTED

AT_ONCE: Final = 2
"""Processes at the same time."""

REQUESTS: Final = {
    "default": ("names", "message"),
    "strict": ("every",),
    **dict.fromkeys(RIVALS, ("message",)),
}
"""The kinds of requests of each contestant; what a rival does is the same after each."""


def main(arguments: Sequence[str]) -> int:
    """Do what the command line says. 0: all ran; 1: something could not."""
    parser = argparse.ArgumentParser(prog="make commits", description=__doc__)
    parser.add_argument("repositories", nargs="+", type=Path, metavar="REPOSITORY", help="a git directory, or its tree")
    parser.add_argument("--commits", type=int, default=40, metavar="N", help="commits of each (default: 40)")
    parser.add_argument("--before", default="HEAD", metavar="SHA", help="the newest one (default: HEAD)")
    parser.add_argument("--forms", choices=("turns", "all"), default="turns", help="one form a commit, or all of them")
    parser.add_argument("--only", action="append", choices=[*MODULES], metavar="NAME", help="this contestant")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write each result as a line of JSON")
    options = parser.parse_args(arguments)
    start, contestants = time.monotonic(), options.only or [*MODULES]

    why = None
    if not set(contestants).isdisjoint(RIVALS):
        why = prepare(LANGCHAIN)
    if why:
        print(f"{' and '.join(RIVALS)} are not in the table: {why}")
        contestants = [name for name in contestants if name not in RIVALS]

    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="commits-") as place, ThreadPoolExecutor(AT_ONCE) as pool:
        jobs = [
            pool.submit(_played, Path(place, f"{number:03}"), path, contestants, options)
            for number, path in enumerate(options.repositories)
        ]
        for job in jobs:
            rows += job.result()
            if options.json:
                options.json.write_text("".join(json.dumps(row.as_map()) + "\n" for row in rows), "utf-8")

    for line in report(rows):
        print(line, flush=True)
    print(f"\n{(time.monotonic() - start) / 60:.1f} min, python {sys.version.split()[0]}, {os.cpu_count()} CPUs")
    return int(bool(why) or any(row.failure for row in rows))


def _played(place: Path, path: Path, contestants: Sequence[str], options: Any) -> list[Row]:
    """The rows of all contestants on a repository, one process after the other: one for each environment."""
    repository, whole = Repository.at(path), path.resolve()
    name = whole.parent.name if whole.name in {"repo", ".git"} else whole.name
    commits = repository.commits(options.commits, options.before)
    reasons = {commit.sha: why_apart(repository, commit) for commit in commits}
    rows: list[Row] = []

    for environment in (DEVELOPMENT, LANGCHAIN):
        names = [each for each in contestants if (each in RIVALS) is (environment == LANGCHAIN)]
        plan = [row for each in names for row in _rows(name, each, reasons, every_form=options.forms == "all")]
        if plan:
            rows += _ran(place / names[0], repository, commits, plan, environment)
    return rows


def _ran(
    home: Path, repository: Repository, commits: Sequence[Commit], plan: Sequence[Row], environment: str
) -> Iterator[Row]:
    """The rows of a plan as they are after a process has tried them."""
    home.mkdir(parents=True)
    tasks = {
        "repository": str(repository.place),
        "commits": {commit.sha: [commit.parent, commit.message] for commit in commits},
        "rows": [row.as_map() for row in plan if not row.apart],
    }
    (home / "plan.json").write_text(json.dumps(tasks), "utf-8")

    command = [python_of(environment), "-P", "-m", "benchmarks.commits.child", str(home / "plan.json"), str(home)]
    settings = {"PYTHONPATH": str(root_of_project()), "LANGSMITH_TRACING": "false"}
    with (home / "rows.jsonl").open("w+", encoding="utf-8") as output:
        done = subprocess.run(
            command,
            cwd=home,
            env=clean_environment(os.environ, home, settings),
            stdout=output,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
        output.seek(0)
        rows = [Row(**json.loads(line)) for line in output]

    yield from (row for row in plan if row.apart)
    yield from rows
    if done.returncode:
        failure = f"it ended early: {done.stderr.strip()[-600:]}"
        yield Row(plan[0].repository, "", plan[0].contestant, failure=failure)
    print(f"{plan[0].repository}, {plan[-1].contestant}: {len(rows)} runs", file=sys.stderr, flush=True)


def _rows(name: str, contestant: str, reasons: dict[str, str], *, every_form: bool) -> Iterator[Row]:
    """What is to be tried. Forms take turns, and another one follows each kind of request."""
    for number, (sha, why) in enumerate(reasons.items()):
        for shift, request in enumerate(REQUESTS[contestant]):
            forms = FORMS if every_form else FORMS[(number + shift) % len(FORMS) :][:1]
            for form in FORMS[:1] if why else forms:
                yield Row(name, sha, contestant, request, form, apart=why)


def why_apart(repository: Repository, commit: Commit) -> str:
    """Why a commit is not tried: no text tool can make it, or a rule protects or denies a file of it; "" if it is."""
    try:
        deltas = repository.deltas(commit)
    except AbsentError:
        return "absent"
    if not deltas:
        return "empty"

    paths = [Path(path) for delta in deltas for path in (delta.source, delta.path)]
    if why := next(filter(None, (delta.why_apart() for delta in deltas)), ""):
        return why
    if not all(check_file_guardrails(path).allowed for path in paths):
        return "denied"
    return "protected" if any(PROTECTED.reason_for(path) for path in paths) else ""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
