"""Attack mendgraph and others with an obedient model, and print what it got done: `make redteam`.

The contestants run in processes, two at once, each in the environment that it needs, which is made on first use. Every
run has folders of its own, which are removed; nothing but loopback is asked.
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

from benchmarks.overhead.environments import DEVELOPMENT, LANGCHAIN, prepare
from benchmarks.real_model.rivals import environments
from benchmarks.redteam import tables
from benchmarks.redteam.child import MODULES
from benchmarks.redteam.dojo.run import measured, rows_of
from benchmarks.redteam.outcome import Row

MINI: Final = "mini-swe-agent"
PLACES: Final = {"create_agent": LANGCHAIN, "deepagents": LANGCHAIN, MINI: MINI}
"""The environment of each contestant that is not in our own."""

AT_ONCE: Final = 2
"""Processes at the same time."""


def main(arguments: Sequence[str]) -> int:
    """Do what the command line says. 0: all ran; 1: something could not."""
    parser = argparse.ArgumentParser(prog="make redteam", description=__doc__)
    parser.add_argument("--only", action="append", choices=[*MODULES, "agentdojo"], metavar="NAME", help="this one")
    parser.add_argument("--goals", default="", metavar="A,B", help="these goals only")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write each result as a line of JSON")
    said = parser.parse_args(arguments)
    started, chosen = time.monotonic(), [name for name in MODULES if not said.only or name in said.only]
    missing = {name: why for name in chosen if (why := made(PLACES.get(name, DEVELOPMENT)))}
    chosen = [name for name in chosen if name not in missing]
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="redteam-") as place, ThreadPoolExecutor(AT_ONCE) as pool:
        # The longest first.
        jobs = [
            pool.submit(attacked, name, Path(place), said.goals) for name in sorted(chosen, key=PLACES.__contains__)
        ]
        for job in jobs:
            rows += job.result()
    if said.json:
        said.json.write_text("".join(json.dumps(row.as_map()) + "\n" for row in rows), "utf-8")
    for line in report(rows, chosen, missing):
        print(line, flush=True)
    failed = bool(missing) or any(row.failure for row in rows)
    if not said.goals and (not said.only or "agentdojo" in said.only):
        for line in measured(AT_ONCE):
            print(line, flush=True)
    print(f"\n{(time.monotonic() - started) / 60:.1f} min, python {sys.version.split()[0]}, {os.cpu_count()} CPUs")
    return int(failed)


def made(environment: str) -> str | None:
    """Make an environment; None, or why it cannot be made."""
    if environment == MINI:
        return environments.install(environments.environment_of(MINI), Path(__file__).with_name(f"{MINI}.txt"))
    return prepare(environment)


def attacked(contestant: str, place: Path, goals: str) -> list[Row]:
    """All goals against one contestant, in a process of its own."""
    home = place / contestant.replace(", ", "-").replace(" ", "-")
    home.mkdir()
    where = PLACES.get(contestant, DEVELOPMENT)
    python = str(environments.environment_of(where) / "bin" / "python") if where else sys.executable
    command = [python, "-P", "-m", "benchmarks.redteam.child", contestant, str(home), "0", "1", goals]
    found, failure = rows_of(command, home, {"MSWEA_SILENT_STARTUP": "1"})
    rows = [Row(**each) for each in found]
    if failure is not None:
        rows.append(Row(contestant, "", "", failure=f"it ended early: {failure}"))
    print(f"{contestant}: {len(rows)} goals", file=sys.stderr, flush=True)
    return rows


def report(rows: Sequence[Row], contestants: Sequence[str], missing: dict[str, str]) -> Iterator[str]:
    """The table, what got through, and what could not be measured."""
    ran = [row for row in rows if row.goal]
    if ran:
        yield tables.achieved(ran, contestants)
        yield tables.got_through([row for row in ran if row.contestant.startswith("ours")])
    yield from (f"\n{name} is not in the table: {why}" for name, why in missing.items())
    yield from (f"\n{row.contestant}, {row.goal or 'all'}: {row.failure}" for row in rows if row.failure)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
