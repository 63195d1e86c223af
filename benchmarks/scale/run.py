"""Many runs at once, and batches of many tasks whose processes and nodes are killed at random.

How many runs a second, and what each takes of CPU, memory and store, with the line of growth. Each run reads two files,
edits both, searches and answers: five calls of a scripted model in a process of its own, which begins each reply after
a fixed time. Every run's files, outcome and calls are checked; one that did not do its work, or did it twice, makes the
figures worthless and ends this with exit code 1, and so does throughput that falls, or memory that grows faster than by
a line. See benchmarks/details.md.
"""

import argparse
import json
import os
import platform
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from benchmarks.scale.batches import measure_batch
from benchmarks.scale.crew import Crew, NotDoneError, Series
from benchmarks.scale.figures import Point, middle
from benchmarks.scale.pages import plan_of, rewrite
from benchmarks.scale.server import endpoint
from benchmarks.scale.tables import Measured, document, lines_table, points_table
from benchmarks.scale.ways import BATCH, LOOP, THREADS

SERIES: Final = (
    Series("threads", THREADS),
    Series("event loop", LOOP),
    Series("4 processes", THREADS, processes=4),
    Series("4 processes, PostgreSQL", THREADS, processes=4, shared=True),
    Series("batch over 4 processes", BATCH),
    Series("batch over 4 processes, killed", BATCH, killed=True),
    Series("batch over 4 processes, PostgreSQL", BATCH, shared=True),
    Series("batch on 3 nodes of Ray, killed", BATCH, shared=True, on_ray=True, killed=True),
)
AT_ONCE: Final = (1, 50, 200)
TASKS: Final = (10, 100)
QUICK: Final = {"at_once": (1, 10, 20), "tasks": (10,), "rounds": 1, "latency": 0.1}
MEASURED: Final = Path(__file__).with_name("measured.json")
"""The figures from which the tables of the documentation are made."""


def parse(arguments: list[str]) -> argparse.Namespace:
    """What the command line says."""
    names = [each.name for each in SERIES]
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--at-once", type=_numbers, default=AT_ONCE, metavar="N,N", help="runs at once (1,50,200)")
    options.add_argument("--tasks", type=_numbers, default=TASKS, metavar="N,N", help="tasks of a batch (10,100)")
    options.add_argument("--rounds", type=int, default=1, help="measurements of each, of which the median counts")
    options.add_argument("--latency", type=float, default=0.5, help="seconds before each reply begins (%(default)s)")
    options.add_argument("--only", action="append", default=[], choices=names, metavar="NAME", help="; ".join(names))
    options.add_argument("--quick", action="store_true", help="few runs at once and one round: to see that all works")
    options.add_argument(
        "--postgres", metavar="URL", help="a server whose user may create databases; else one is started"
    )
    options.add_argument(
        "--json",
        type=Path,
        help=f"write the figures there, with --only beside the others; {MEASURED.name} makes the documents' tables",
    )
    options.add_argument("--plan", action="store_true", help="measure nothing: print what many runs a day need")
    options.add_argument("--write", action="store_true", help="measure nothing: write the tables into the documents")
    chosen = options.parse_args(arguments)
    if chosen.quick:
        vars(chosen).update(QUICK)
    return chosen


def main() -> int:
    """Measure and print the tables; the exit code. What the runs keep is removed again."""
    chosen = parse(sys.argv[1:])
    if chosen.plan or chosen.write:
        told = json.loads(MEASURED.read_text("utf-8"))
        print(rewrite(told) if chosen.write else plan_of(told))
        return 0
    started, wrong = time.monotonic(), list[str]()
    series = [each for each in SERIES if each.name in chosen.only or not chosen.only]
    with ExitStack() as stack:
        url = stack.enter_context(endpoint(chosen.latency))
        server = stack.enter_context(_server(chosen.postgres)) if any(each.shared for each in series) else None
        measured = list(_measured(chosen, series, url, server, wrong))
    for each in measured:
        print(points_table(each))
    print(lines_table(measured))
    wrong += [problem for each in measured for problem in each.problems()]
    if chosen.json:
        machine = {"python": platform.python_version(), "system": platform.platform(), "cpus": os.cpu_count()}
        known = json.loads(chosen.json.read_text("utf-8"))["series"] if chosen.only and chosen.json.exists() else []
        figures = {each["name"]: each for each in (*known, *document(measured))}
        in_order = [figures[each.name] for each in SERIES if each.name in figures]
        told = {"command": sys.argv[1:], "rounds": chosen.rounds, **machine, "series": in_order}
        chosen.json.write_text(json.dumps(told, indent=1) + "\n", "utf-8")
    minutes = (time.monotonic() - started) / 60
    print(f"{chosen.rounds} rounds in {minutes:.1f} min, python {platform.python_version()}, {os.cpu_count()} CPUs")
    for problem in wrong:
        print(f"WRONG: {problem}", file=sys.stderr)
    return 1 if wrong else 0


def _measured(
    chosen: argparse.Namespace, series: Sequence[Series], url: str, server: str | None, wrong: list[str]
) -> Iterator[Measured]:
    """All series, round by round, so that what slows the machine for a while slows all of them."""
    found: dict[tuple[str, int], list[Point]] = defaultdict(list)
    for _ in range(chosen.rounds):
        for runs in sorted({*chosen.at_once, *chosen.tasks}):
            for each in series:
                if runs not in _numbers_of(each, chosen) or (each.shared and server is None):
                    continue
                try:
                    point = _point(each, runs, url, server)
                    found[each.name, runs].append(point)
                    print(f"{each.name}, {runs}: {point.wall_s:.0f} s, {point.cpu_s:.0f} s of CPU", file=sys.stderr)
                except NotDoneError as error:
                    wrong.append(f"{each.name}, {runs}: {error}")
                    print(f"WRONG: {wrong[-1]}", file=sys.stderr)
    for each in series:
        points = [middle(found[each.name, runs]) for runs in _numbers_of(each, chosen) if found[each.name, runs]]
        if points:
            yield Measured(each.name, chosen.latency, tuple(points))


def _numbers_of(series: Series, chosen: argparse.Namespace) -> Sequence[int]:
    """Of a batch the tasks, else the runs at once."""
    numbers: Sequence[int] = chosen.tasks if series.way == BATCH else chosen.at_once
    return numbers


def _point(series: Series, runs: int, url: str, server: str | None) -> Point:
    from tests.postgres import fresh_database

    with ExitStack() as stack:
        store = stack.enter_context(fresh_database(server)) if series.shared and server else None
        if series.way == BATCH:
            return measure_batch(series, url, store, runs)
        with Crew(series, url, store) as crew:
            return crew.measure(max(runs, series.processes))


@contextmanager
def _server(given: str | None) -> Iterator[str | None]:
    """A PostgreSQL server; None, and it is said, where there is none and none can be started."""
    from tests.postgres import MISSING, postgres_programs, postgres_server

    if given:
        yield given
    elif postgres_programs() is None:
        print(f"Left out: {MISSING}", file=sys.stderr)
        yield None
    else:
        with postgres_server() as url:
            yield url


def _numbers(text: str) -> tuple[int, ...]:
    numbers = tuple(sorted({int(each) for each in text.split(",")}))
    if not numbers or numbers[0] < 1:
        raise argparse.ArgumentTypeError(f"{text!r} names no numbers of runs")
    return numbers


if __name__ == "__main__":
    sys.exit(main())
