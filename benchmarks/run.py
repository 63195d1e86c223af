"""What a step costs beside its model, measured against other ways to write an agent; all ratios in one interleaved run.

A scripted endpoint in a process of its own asks for a file of 4 kB at each step. Each contestant is a process of its
own that is told over a pipe to make a run, and says what CPU time (user and system) it took: imports are not counted,
nor is an unmeasured first run. Nothing waits for a model. See benchmarks/details.md.
"""

import argparse
import json
import os
import platform
import sys
import time
from pathlib import Path
from typing import Final

from rich.console import Console

from benchmarks.endpoint import in_process
from benchmarks.overhead import server
from benchmarks.overhead.database import database_growth
from benchmarks.overhead.environments import LANGCHAIN, MENDGRAPH, PYDANTIC_AI, prepare
from benchmarks.overhead.scenarios import SCENARIOS, Figures, Setting
from benchmarks.overhead.tables import document, figures_table, growth_table, markdown
from benchmarks.overhead.workers import ENTRANTS, Entrant, Workers

DATABASE: Final = "database"
QUICK: Final = {"steps": 32, "rounds": 2, "at_once": 4, "turns": 20}


def parse(arguments: list[str]) -> argparse.Namespace:
    """What the command line says; `only` has the names of scenarios and of contestants."""
    names = [*SCENARIOS, DATABASE, *(each.name for each in ENTRANTS)]
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--steps", type=int, default=200, help="steps of the long runs (%(default)s)")
    options.add_argument("--rounds", type=int, default=5, help="measured rounds (%(default)s)")
    options.add_argument("--at-once", type=int, default=64, help="runs in one event loop (%(default)s)")
    options.add_argument("--turns", type=int, default=200, help="turns of the run whose database is measured")
    options.add_argument("--only", action="append", default=[], choices=names, metavar="NAME", help=", ".join(names))
    options.add_argument("--quick", action="store_true", help="the same in under two minutes, with rougher figures")
    options.add_argument("--json", type=Path, help="write all figures to this file as well")
    options.add_argument("--markdown", action="store_true", help="print the tables as README.md has them")
    chosen = options.parse_args(arguments)
    if chosen.quick:
        vars(chosen).update(QUICK)
    return chosen


def taking_part(only: list[str]) -> tuple[Entrant, ...]:
    """The contestants that were named, or all; those whose environment cannot be made are left out, and it is said."""
    named = tuple(each for each in ENTRANTS if each.name in only) or ENTRANTS
    problems = {name: prepare(name) for name in (MENDGRAPH, LANGCHAIN, PYDANTIC_AI)}
    for name, problem in problems.items():
        if problem:
            print(f"The environment {name!r} cannot be made: {problem}", file=sys.stderr)
    return tuple(each for each in named if not problems.get(each.environment))


def main() -> None:
    """Measure and print the tables; what the runs keep is removed again."""
    chosen = parse(sys.argv[1:])
    started = time.monotonic()
    scenarios = [name for name in SCENARIOS if name in chosen.only]
    if not scenarios and DATABASE not in chosen.only:
        scenarios = list(SCENARIOS)
    console, measured = Console(), list[Figures]()
    with in_process(server.serve) as url, Workers(url, taking_part(chosen.only)) as workers:
        setting = Setting(workers, chosen.steps, chosen.rounds, chosen.at_once)
        for name in scenarios:
            for figures in SCENARIOS[name](setting):
                measured.append(figures)
                if chosen.markdown:
                    print(markdown(figures))
                else:
                    console.print(figures_table(figures))
    if chosen.json:
        machine = {"python": platform.python_version(), "system": platform.platform(), "cpus": os.cpu_count()}
        told = {"command": sys.argv[1:], **machine, "tables": document(measured)}
        chosen.json.write_text(json.dumps(told, indent=1) + "\n", "utf-8")
    if DATABASE in chosen.only or not chosen.only:
        console.print(growth_table(database_growth(chosen.turns)))
    minutes = (time.monotonic() - started) / 60
    console.print(
        f"{chosen.rounds} rounds in {minutes:.1f} min, python {platform.python_version()}, {os.cpu_count()} CPUs"
    )


if __name__ == "__main__":
    main()
