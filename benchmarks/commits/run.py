"""Reproduce the last commits of git repositories with a scripted model, and compare the trees byte for byte.

The model reads the files that a commit changes and makes its changes by `edit_file`, `apply_patch` or `write_file`. The
contestants are mendgraph with its defaults and with `--strict`, `create_agent` with deepagents' tools, and deepagents.
Merge commits are skipped. Commits that no text tool can make are counted separately, with the reason.
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
"""The number of concurrent processes."""

REQUESTS: Final = {
    "default": ("names", "message"),
    "strict": ("every",),
    **dict.fromkeys(RIVALS, ("message",)),
}
"""The kinds of requests of each contestant. A rival does the same for every kind, so one is enough."""


def parse_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="make commits", description=__doc__)
    parser.add_argument(
        "repositories", nargs="+", type=Path, metavar="REPOSITORY", help="a git directory or a working tree"
    )
    parser.add_argument("--commits", type=int, default=40, metavar="N", help="commits per repository (default: 40)")
    parser.add_argument("--before", default="HEAD", metavar="SHA", help="the newest commit (default: HEAD)")
    parser.add_argument(
        "--forms", choices=("turns", "all"), default="turns", help="one form per commit in turn, or all forms"
    )
    parser.add_argument("--only", action="append", choices=[*MODULES], metavar="NAME", help="run only this contestant")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write each result as a line of JSON")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> int:
    """Reproduce the commits and print the tables. Return 0, or 1 if a contestant is missing or failed."""
    options = parse_arguments(arguments)
    start = time.monotonic()
    contestants = options.only or [*MODULES]

    problem = None
    if not set(contestants).isdisjoint(RIVALS):
        problem = prepare(LANGCHAIN)
    if problem:
        print(f"{' and '.join(RIVALS)} are not in the table: {problem}")
        contestants = [name for name in contestants if name not in RIVALS]

    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="commits-") as folder, ThreadPoolExecutor(AT_ONCE) as pool:
        jobs = [
            pool.submit(_run_repository, Path(folder, f"{number:03}"), path, contestants, options)
            for number, path in enumerate(options.repositories)
        ]
        for job in jobs:
            rows += job.result()
            if options.json:
                write_json(options.json, rows)

    for line in report(rows):
        print(line, flush=True)
    print(f"\n{(time.monotonic() - start) / 60:.1f} min, python {sys.version.split()[0]}, {os.cpu_count()} CPUs")
    return int(bool(problem) or any(row.failure for row in rows))


def write_json(file: Path, rows: Sequence[Row]) -> None:
    """Write each row as a line of JSON."""
    lines = [json.dumps(row.as_map()) + "\n" for row in rows]
    file.write_text("".join(lines), "utf-8")


def _run_repository(folder: Path, path: Path, contestants: Sequence[str], options: Any) -> list[Row]:
    """Run all contestants on a repository, in one process for each environment, and return their rows."""
    repository = Repository.at(path)
    name = _repository_name(path.resolve())
    commits = repository.commits(options.commits, options.before)
    reasons = {commit.sha: skip_reason(repository, commit) for commit in commits}
    every_form = options.forms == "all"

    names = {
        DEVELOPMENT: [contestant for contestant in contestants if contestant not in RIVALS],
        LANGCHAIN: [contestant for contestant in contestants if contestant in RIVALS],
    }
    rows: list[Row] = []
    for environment, members in names.items():
        plan: list[Row] = []
        for contestant in members:
            plan += _plan_rows(name, contestant, reasons, every_form=every_form)
        if plan:
            rows += _run_plan(folder / members[0], repository, commits, plan, environment)
    return rows


def _repository_name(path: Path) -> str:
    if path.name in {"repo", ".git"}:
        return path.parent.name
    return path.name


def _run_plan(
    home: Path, repository: Repository, commits: Sequence[Commit], plan: Sequence[Row], environment: str
) -> list[Row]:
    """Run the rows of a plan in a process of this environment, and return them with their results."""
    home.mkdir(parents=True)
    contents = {
        "repository": str(repository.git_dir),
        "commits": {commit.sha: [commit.parent, commit.message] for commit in commits},
        "rows": [row.as_map() for row in plan if not row.apart],
    }
    plan_file = home / "plan.json"
    plan_file.write_text(json.dumps(contents), "utf-8")

    command = [python_of(environment), "-P", "-m", "benchmarks.commits.child", str(plan_file), str(home)]
    settings = {"PYTHONPATH": str(root_of_project()), "LANGSMITH_TRACING": "false"}
    with (home / "rows.jsonl").open("w+", encoding="utf-8") as output:
        process = subprocess.run(
            command,
            cwd=home,
            env=clean_environment(os.environ, home, settings),
            stdout=output,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
        output.seek(0)
        results = [Row(**json.loads(line)) for line in output]

    print(f"{plan[0].repository}, {plan[-1].contestant}: {len(results)} runs", file=sys.stderr, flush=True)
    rows = [row for row in plan if row.apart] + results
    if process.returncode:
        failure = f"the process exited early: {process.stderr.strip()[-600:]}"
        rows.append(Row(plan[0].repository, "", plan[0].contestant, failure=failure))
    return rows


def _plan_rows(name: str, contestant: str, reasons: dict[str, str], *, every_form: bool) -> Iterator[Row]:
    """Yield the rows to run. The form rotates with the commit and with the kind of request."""
    for number, (sha, reason) in enumerate(reasons.items()):
        for shift, request in enumerate(REQUESTS[contestant]):
            forms: Sequence[str] = FORMS
            if reason:
                forms = FORMS[:1]
            elif not every_form:
                forms = [FORMS[(number + shift) % len(FORMS)]]

            for form in forms:
                yield Row(name, sha, contestant, request, form, apart=reason)


def skip_reason(repository: Repository, commit: Commit) -> str:
    """Return why a commit is skipped: no text tool can make it, or a rule denies or protects a file; "" otherwise."""
    try:
        deltas = repository.deltas(commit)
    except AbsentError:
        return "absent"
    if not deltas:
        return "empty"

    for delta in deltas:
        if reason := delta.skip_reason():
            return reason

    paths = [Path(path) for delta in deltas for path in (delta.source, delta.path)]
    if not all(check_file_guardrails(path).allowed for path in paths):
        return "denied"
    if any(PROTECTED.reason_for(path) for path in paths):
        return "protected"
    return ""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
