"""Run thirteen everyday requests and five about large files with the embedded model as it is, and print a table.

Each request has a fresh project of its own: a git repository, the Python one with a .venv that has pytest. A call may
take as long as it does on a busy machine: 600 s a request. Replies are kept in the cache of `make eval`.
"""

import argparse
import subprocess
import sys
import venv
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
from mendgraph.nodes.call_model.local_model import why_unavailable
from mendgraph.nodes.call_model.weights import embedded_weights

LIMITS = Limits(calls=10, seconds=600.0, output_tokens=2048)
"""The defaults of `AgentContext` but for the seconds, of which that has no limit."""
PYTEST = ("pytest", "pluggy", "iniconfig", "packaging", "pygments")
"""What `pip install pytest` installs."""


def main(arguments: Sequence[str]) -> int:
    """Do what the command line says. 0: all ran; 1: they could not."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", default="", metavar="A,B", help="these requests only")
    parser.add_argument(
        "--seeds", default="1,2", metavar="N,M", help="a run of all for each; tries after the first differ"
    )
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep results, projects and runs in a new folder")
    said = parser.parse_args(arguments)
    names = [name for name in said.tasks.split(",") if name]
    requests = [*EVERYDAY, *LARGE_FILES]
    tasks = [task for task in requests if not names or task.name in names]
    if len(tasks) < len(names):
        parser.error(f"the requests are {', '.join(task.name for task in requests)}")
    if unavailable := why_unavailable():
        print(unavailable.message)
        return 1
    weights, server, records = embedded_weights(), EmbeddedServer(), []
    keep = said.keep and said.keep.resolve()
    if keep:
        keep.mkdir(parents=True)
    try:
        with MeasuredEndpoint(server, weights.model, weights.sha256, ReplyCache(REPLIES)) as endpoint:
            for seed in said.seeds.split(","):
                (ours,) = our_contestants(f"seed {seed}", {"seed": int(seed)}, ablate=False)
                for task in tasks:
                    place = keep and keep / f"{task.name}_{seed}"
                    record = run_task(ours, task, endpoint, LIMITS, as_people_keep_it, place)
                    records.append(record)
                    print(*row(record), record.problem or "", sep=" | ", flush=True)
                    if keep:
                        with (keep / "results.jsonl").open("a", encoding="utf-8") as file:
                            file.write(line_of(record))
    finally:
        server.stop()
    print(f"\n{report(records)}")
    return 0


def as_people_keep_it(project: Path) -> None:
    """Make a git repository of one commit, and for Python a .venv in which pytest is installed."""
    if (project / "pyproject.toml").exists():
        place = project / ".venv"
        venv.create(place, symlinks=True)
        (packages,) = place.glob("lib/python*/site-packages")
        for file in [each for name in PYTEST for each in metadata.files(name) or () if ".." not in each.parts]:
            (packages / file).parent.mkdir(parents=True, exist_ok=True)
            copy(file.locate(), packages / file)
        script = place / "bin/pytest"
        script.write_text(f"#!{place}/bin/python\nimport sys, pytest\nsys.exit(pytest.console_main())\n", "utf-8")
        script.chmod(0o755)
    somebody = ("-c", "user.name=Somebody", "-c", "user.email=somebody@example.org")
    for words in (("init", "-q"), ("add", "-A"), ("commit", "-qm", "First version")):
        subprocess.run(["git", *somebody, *words], cwd=project, check=True)


def result_of(record: RunRecord) -> str:
    """What came of a request: solved, not solved, or FINISHED with a wrong result, with "not checked" or without."""
    if record.problem is None:
        return "solved"
    if record.problem == NOT_CHECKED:
        return NOT_CHECKED
    if record.end.ended != "FINISHED":
        return "not solved"
    return "wrong, and says that nothing checked it" if "not checked" in record.end.first_line else "WRONG"


def row(record: RunRecord) -> list[str]:
    """A result in the cells of the table."""
    figures = (describe_end(record), record.end.checked or "-", f"{record.end.seconds:.0f}", str(len(record.calls)))
    return [record.task, record.label, result_of(record), *figures]


def report(records: Sequence[RunRecord]) -> str:
    """The table of all results, and the counts of each seed."""
    heads = ["request", "run", "result", "ended", "checks", "seconds", "calls"]
    lines = [table(heads, map(row, records))]
    large = {task.name for task in LARGE_FILES}
    groups: dict[str, list[str]] = {}
    for record in records:
        group = f"{record.label}, large files" if record.task in large else record.label
        groups.setdefault(group, []).append(result_of(record))

    for label, results in groups.items():
        wrong, said = results.count("WRONG"), sum(each.startswith("wrong") for each in results)
        lines.append(
            f"{label}: {results.count('solved')} of {len(results)} solved; {wrong + said} FINISHED wrong, "
            f'{said} of them with "not checked" in the first line; {results.count(NOT_CHECKED)} not checked'
        )
    return "\n\n".join(lines)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
