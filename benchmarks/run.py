"""Measure the CPU cost of a step in mendgraph and in other agents, interleaved so that ratios are comparable.

A scripted endpoint asks for a file of 4 kB at each step. Each contestant is a process that receives jobs over a pipe
and reports the user and system CPU time of each. Imports and a first run are not counted, and no run waits for a model.
See benchmarks/details.md.
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


def parse_arguments(arguments: list[str]) -> argparse.Namespace:
    """Parse the command line. `only` has names of scenarios and of contestants."""
    names = [*SCENARIOS, DATABASE, *(entrant.name for entrant in ENTRANTS)]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=200, help="steps of the long runs (%(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="measured rounds (%(default)s)")
    parser.add_argument("--at-once", type=int, default=64, help="concurrent runs in one event loop (%(default)s)")
    parser.add_argument("--turns", type=int, default=200, help="turns of the run for the database size (%(default)s)")
    parser.add_argument("--only", action="append", default=[], choices=names, metavar="NAME", help=", ".join(names))
    parser.add_argument("--quick", action="store_true", help="measure less, in under two minutes")
    parser.add_argument("--json", type=Path, help="also write all figures to this file")
    parser.add_argument("--markdown", action="store_true", help="print the tables as Markdown")

    options = parser.parse_args(arguments)
    if options.quick:
        vars(options).update(QUICK)
    return options


def select_entrants(only: list[str]) -> tuple[Entrant, ...]:
    """Create the environments, and return the contestants to measure: those in `only`, or all.

    A contestant whose environment cannot be created is excluded, with a message on standard error.
    """
    problems = {name: prepare(name) for name in (MENDGRAPH, LANGCHAIN, PYDANTIC_AI)}
    for name, problem in problems.items():
        if problem:
            print(f"Cannot create the environment {name!r}: {problem}", file=sys.stderr)

    entrants = [entrant for entrant in ENTRANTS if entrant.name in only] or ENTRANTS
    return tuple(entrant for entrant in entrants if not problems.get(entrant.environment))


def select_scenarios(only: list[str]) -> list[str]:
    """Return the names of the scenarios to measure: those in `only`, or all."""
    names = [name for name in SCENARIOS if name in only]
    if names or DATABASE in only:
        return names
    return list(SCENARIOS)


def measure(options: argparse.Namespace, console: Console) -> list[Figures]:
    """Measure the scenarios, and print and return their tables."""
    tables = []

    with in_process(server.serve) as url, Workers(url, select_entrants(options.only)) as workers:
        setting = Setting(workers, options.steps, options.rounds, options.at_once)
        for name in select_scenarios(options.only):
            for figures in SCENARIOS[name](setting):
                tables.append(figures)
                if options.markdown:
                    print(markdown(figures))
                else:
                    console.print(figures_table(figures))

    return tables


def write_json(path: Path, tables: list[Figures]) -> None:
    """Write the figures, the command and the machine to a file."""
    contents = {
        "command": sys.argv[1:],
        "python": platform.python_version(),
        "system": platform.platform(),
        "cpus": os.cpu_count(),
        "tables": document(tables),
    }
    path.write_text(json.dumps(contents, indent=1) + "\n", "utf-8")


def main() -> None:
    """Measure, and print the tables."""
    options = parse_arguments(sys.argv[1:])
    start = time.monotonic()
    console = Console()

    tables = measure(options, console)
    if options.json:
        write_json(options.json, tables)

    if DATABASE in options.only or not options.only:
        console.print(growth_table(database_growth(options.turns)))

    minutes = (time.monotonic() - start) / 60
    console.print(
        f"{options.rounds} rounds in {minutes:.1f} min, python {platform.python_version()}, {os.cpu_count()} CPUs"
    )


if __name__ == "__main__":
    main()
