"""Run thirteen everyday requests and five about large files with the embedded model, and print a table.

Each request has a new project, which is a git repository; the Python project has a .venv with pytest. A request may
take 600 s, because the machine may be busy. Replies are stored in the cache of `make eval`.
"""

import argparse
import subprocess
import sys
import venv
from collections import Counter
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from shutil import copy

from benchmarks.everyday.large_files import LARGE_FILES
from benchmarks.everyday.tasks import EVERYDAY, NOT_CHECKED
from benchmarks.real_model.contestants import our_contestants, run_task
from benchmarks.real_model.endpoint import EmbeddedServer, MeasuredEndpoint
from benchmarks.real_model.measured_run import Limits
from benchmarks.real_model.record import RunRecord, line_of
from benchmarks.real_model.reply_cache import ReplyCache
from benchmarks.real_model.run import REPLIES
from benchmarks.real_model.score import describe_end, table
from benchmarks.real_model.task import Task
from mendgraph.nodes.call_model.local_model import why_unavailable
from mendgraph.nodes.call_model.weights import embedded_weights

LIMITS = Limits(calls=10, seconds=600.0, output_tokens=2048)
"""The defaults of `AgentContext`, with a time limit."""
PYTEST = ("pytest", "pluggy", "iniconfig", "packaging", "pygments")
"""The packages that `pip install pytest` installs."""

SOLVED = "solved"
NOT_SOLVED = "not solved"
WRONG = "WRONG"
WRONG_NOT_CHECKED = 'wrong, with "not checked"'


def main(arguments: Sequence[str]) -> int:
    """Run the requests and print the table. Return 0, or 1 if the embedded model is not available."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", default="", metavar="A,B", help="run only these requests")
    parser.add_argument(
        "--seeds", default="1,2", metavar="N,M", help="run all requests for each seed, which affects later tries"
    )
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep results, projects and runs in a new folder")
    options = parser.parse_args(arguments)

    names = [name for name in options.tasks.split(",") if name]
    requests = [*EVERYDAY, *LARGE_FILES]
    tasks = [task for task in requests if not names or task.name in names]
    if len(tasks) < len(names):
        parser.error(f"the requests are {', '.join(task.name for task in requests)}")
    if unavailable := why_unavailable():
        print(unavailable.message)
        return 1

    folder = options.keep.resolve() if options.keep else None
    if folder:
        folder.mkdir(parents=True)
    records = run_all(tasks, options.seeds.split(","), folder)
    print(f"\n{report(records)}")
    return 0


def run_all(tasks: Sequence[Task], seeds: Sequence[str], folder: Path | None) -> list[RunRecord]:
    """Run the tasks with each seed, print each result, and return the records. `folder` keeps the results."""
    weights = embedded_weights()
    server = EmbeddedServer()
    records = []

    try:
        with MeasuredEndpoint(server, weights.model, weights.sha256, ReplyCache(REPLIES)) as endpoint:
            for seed in seeds:
                (contestant,) = our_contestants(f"seed {seed}", {"seed": int(seed)}, ablate=False)
                for task in tasks:
                    keep = folder / f"{task.name}_{seed}" if folder else None
                    record = run_task(contestant, task, endpoint, LIMITS, prepare_project, keep)
                    records.append(record)
                    print(*row(record), record.problem or "", sep=" | ", flush=True)
                    if folder:
                        with (folder / "results.jsonl").open("a", encoding="utf-8") as file:
                            file.write(line_of(record))
    finally:
        server.stop()
    return records


def prepare_project(project: Path) -> None:
    """Create a git repository with one commit, and for a Python project a .venv with pytest."""
    if (project / "pyproject.toml").exists():
        create_environment(project / ".venv")

    identity = ("-c", "user.name=Somebody", "-c", "user.email=somebody@example.org")
    for arguments in (("init", "-q"), ("add", "-A"), ("commit", "-qm", "First version")):
        subprocess.run(["git", *identity, *arguments], cwd=project, check=True)


def create_environment(environment: Path) -> None:
    """Create an environment, and copy pytest from the current environment."""
    venv.create(environment, symlinks=True)
    (packages,) = environment.glob("lib/python*/site-packages")
    for name in PYTEST:
        for file in metadata.files(name) or ():
            if ".." not in file.parts:
                target = packages / file
                target.parent.mkdir(parents=True, exist_ok=True)
                copy(file.locate(), target)

    script = environment / "bin/pytest"
    script.write_text(f"#!{environment}/bin/python\nimport sys, pytest\nsys.exit(pytest.console_main())\n", "utf-8")
    script.chmod(0o755)


def result_of(record: RunRecord) -> str:
    """Return the result of a request."""
    if record.problem is None:
        return SOLVED
    if record.problem == NOT_CHECKED:
        return NOT_CHECKED
    if record.end.ended != "FINISHED":
        return NOT_SOLVED
    if "not checked" in record.end.first_line:
        return WRONG_NOT_CHECKED
    return WRONG


def row(record: RunRecord) -> list[str]:
    """Return the cells of a result."""
    return [
        record.task,
        record.label,
        result_of(record),
        describe_end(record),
        record.end.checked or "-",
        f"{record.end.seconds:.0f}",
        str(len(record.calls)),
    ]


def report(records: Sequence[RunRecord]) -> str:
    """Return the table of all results, and the counts of each seed."""
    heads = ["request", "run", "result", "ended", "checks", "seconds", "calls"]
    paragraphs = [table(heads, map(row, records))]

    large = {task.name for task in LARGE_FILES}
    counts: dict[str, Counter[str]] = {}
    for record in records:
        group = f"{record.label}, large files" if record.task in large else record.label
        counts.setdefault(group, Counter())[result_of(record)] += 1

    for group, count in counts.items():
        paragraphs.append(
            f"{group}: {count[SOLVED]} of {count.total()} solved; "
            f"{count[WRONG] + count[WRONG_NOT_CHECKED]} FINISHED with a wrong result, "
            f'{count[WRONG_NOT_CHECKED]} of them with "not checked" in the first line; '
            f"{count[NOT_CHECKED]} could not be checked"
        )
    return "\n\n".join(paragraphs)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
