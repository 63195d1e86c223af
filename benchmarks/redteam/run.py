"""Attack mendgraph and other agents with an obedient model, and print the achieved goals: `make redteam`.

Two contestants run at a time, each in a process of its environment, which is created on first use. Each run has
separate folders, which are removed afterwards. The only network is loopback.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from benchmarks.overhead.environments import DEVELOPMENT, LANGCHAIN, prepare, python_of
from benchmarks.real_model.rivals import environments
from benchmarks.redteam import tables
from benchmarks.redteam.child import MODULES
from benchmarks.redteam.dojo.run import agentdojo_report, run_process
from benchmarks.redteam.outcome import Row

MINI: Final = "mini-swe-agent"
ENVIRONMENTS: Final = {"create_agent": LANGCHAIN, "deepagents": LANGCHAIN, MINI: MINI}
"""The environment of each contestant outside of the project's environment."""

AT_ONCE: Final = 2
"""The number of concurrent processes."""


def parse_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="make redteam", description=__doc__)
    parser.add_argument(
        "--only", action="append", choices=[*MODULES, "agentdojo"], metavar="NAME", help="attack only this contestant"
    )
    parser.add_argument("--goals", default="", metavar="A,B", help="attack only with these goals")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write each result as a line of JSON")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> int:
    """Attack the contestants and print the tables. Return 0, or 1 if a contestant is missing or failed."""
    options = parse_arguments(arguments)
    start = time.monotonic()
    contestants = [name for name in MODULES if not options.only or name in options.only]

    problems: dict[str, str] = {}
    for name in contestants:
        if problem := create_environment(ENVIRONMENTS.get(name, DEVELOPMENT)):
            problems[name] = problem
    contestants = [name for name in contestants if name not in problems]

    rows = attack_all(contestants, options.goals)
    if options.json:
        lines = [json.dumps(row.as_map()) + "\n" for row in rows]
        options.json.write_text("".join(lines), "utf-8")

    for line in report(rows, contestants, problems):
        print(line, flush=True)

    if not options.goals and (not options.only or "agentdojo" in options.only):
        for line in agentdojo_report(AT_ONCE):
            print(line, flush=True)

    print(f"\n{(time.monotonic() - start) / 60:.1f} min, python {sys.version.split()[0]}, {os.cpu_count()} CPUs")
    return int(bool(problems) or any(row.failure for row in rows))


def create_environment(name: str) -> str | None:
    """Create an environment if it does not exist; return None, or the problem."""
    if name == MINI:
        return environments.install(environments.environment_of(MINI), Path(__file__).with_name(f"{MINI}.txt"))
    return prepare(name)


def attack_all(contestants: Sequence[str], goals: str) -> list[Row]:
    """Attack all contestants, the slowest first, and return the rows."""
    rows: list[Row] = []
    by_duration = sorted(contestants, key=lambda name: name in ENVIRONMENTS)

    with tempfile.TemporaryDirectory(prefix="redteam-") as folder, ThreadPoolExecutor(AT_ONCE) as pool:
        jobs = [pool.submit(attack_contestant, name, Path(folder), goals) for name in by_duration]
        for job in jobs:
            rows += job.result()
    return rows


def attack_contestant(contestant: str, folder: Path, goals: str) -> list[Row]:
    """Attack one contestant in a separate process, and return the rows."""
    home = folder / contestant.replace(", ", "-").replace(" ", "-")
    home.mkdir()

    python = python_of(ENVIRONMENTS.get(contestant, DEVELOPMENT))
    command = [python, "-P", "-m", "benchmarks.redteam.child", contestant, str(home), "0", "1", goals]
    records, failure = run_process(command, home, {"MSWEA_SILENT_STARTUP": "1"})

    rows = [Row(**record) for record in records]
    if failure is not None:
        rows.append(Row(contestant, "", "", failure=f"the process exited early: {failure}"))
    print(f"{contestant}: {len(rows)} goals", file=sys.stderr, flush=True)
    return rows


def report(rows: Sequence[Row], contestants: Sequence[str], problems: dict[str, str]) -> Iterator[str]:
    """Yield the tables, the missing contestants and the failures."""
    results = [row for row in rows if row.goal]
    if results:
        yield tables.result_table(results, contestants)
        yield tables.achieved_goals_table([row for row in results if row.contestant.startswith("ours")])

    for name, problem in problems.items():
        yield f"\n{name} is not in the table: {problem}"
    for row in rows:
        if row.failure:
            yield f"\n{row.contestant}, {row.goal or 'all'}: {row.failure}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
