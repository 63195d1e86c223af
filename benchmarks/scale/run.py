"""Measure concurrent runs, and batches of many tasks whose processes and nodes are killed at random.

The figures are runs per second, and the CPU, memory and store of each run, with lines of growth. Each run reads two
files, edits both, searches and answers. That takes five calls of a scripted model in a separate process, which begins
each reply after a fixed time. The files, outcome and calls of every run are checked. The exit code is 1 if a run did
not do its work or did it twice, if throughput falls, or if memory grows faster than a line. See benchmarks/details.md.
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
from benchmarks.scale.crew import Crew, IncompleteRunError, Series
from benchmarks.scale.figures import Point, median_point
from benchmarks.scale.pages import plan_tables, update_pages
from benchmarks.scale.server import endpoint
from benchmarks.scale.tables import SeriesFigures, document, lines_table, points_table
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
FIGURES_FILE: Final = Path(__file__).with_name("measured.json")
"""The source of the documents' tables."""


def parse_arguments(arguments: list[str]) -> argparse.Namespace:
    """Parse the command line."""
    names = [series.name for series in SERIES]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--at-once", type=_numbers, default=AT_ONCE, metavar="N,N", help="concurrent runs (1,50,200)")
    parser.add_argument("--tasks", type=_numbers, default=TASKS, metavar="N,N", help="tasks of a batch (10,100)")
    parser.add_argument("--rounds", type=int, default=1, help="measurements, of which the median counts (%(default)s)")
    parser.add_argument("--latency", type=float, default=0.5, help="seconds before each reply begins (%(default)s)")
    parser.add_argument("--only", action="append", default=[], choices=names, metavar="NAME", help="; ".join(names))
    parser.add_argument(
        "--quick", action="store_true", help="measure few runs in one round, as a test of the benchmark"
    )
    parser.add_argument(
        "--postgres", metavar="URL", help="a server whose user may create databases (default: start one)"
    )
    parser.add_argument(
        "--json",
        type=Path,
        help=f"write the figures to this file; with --only, keep the others ({FIGURES_FILE.name} is for the documents)",
    )
    parser.add_argument("--plan", action="store_true", help="print the resources for many runs per day, and exit")
    parser.add_argument("--write", action="store_true", help="update the tables of the documents, and exit")

    options = parser.parse_args(arguments)
    if options.quick:
        vars(options).update(QUICK)
    return options


def main() -> int:
    """Measure, print the tables, and return the exit code."""
    options = parse_arguments(sys.argv[1:])
    if options.plan or options.write:
        figures = json.loads(FIGURES_FILE.read_text("utf-8"))
        print(update_pages(figures) if options.write else plan_tables(figures))
        return 0

    start = time.monotonic()
    all_series = [series for series in SERIES if series.name in options.only or not options.only]
    results, problems = measure(options, all_series)
    for result in results:
        print(points_table(result))
        problems += result.problems()
    print(lines_table(results))
    if options.json:
        write_json(options, results)

    minutes = (time.monotonic() - start) / 60
    print(f"{options.rounds} rounds in {minutes:.1f} min, python {platform.python_version()}, {os.cpu_count()} CPUs")
    for problem in problems:
        print(f"PROBLEM: {problem}", file=sys.stderr)
    return 1 if problems else 0


def measure(options: argparse.Namespace, all_series: Sequence[Series]) -> tuple[list[SeriesFigures], list[str]]:
    """Measure the series, and return their figures and a sentence for each failed measurement.

    The rounds interleave the series, so that a temporary slowdown of the machine affects all of them.
    """
    points: dict[tuple[str, int], list[Point]] = defaultdict(list)
    problems: list[str] = []

    with ExitStack() as stack:
        url = stack.enter_context(endpoint(options.latency))
        server = None
        if any(series.shared for series in all_series):
            server = stack.enter_context(_server(options.postgres))

        for runs in sorted({*options.at_once, *options.tasks}) * options.rounds:
            for series in all_series:
                if runs not in _run_numbers(series, options) or (series.shared and server is None):
                    continue
                try:
                    point = _measure_point(series, runs, url, server)
                except IncompleteRunError as error:
                    problems.append(f"{series.name}, {runs}: {error}")
                    print(f"PROBLEM: {problems[-1]}", file=sys.stderr)
                else:
                    points[series.name, runs].append(point)
                    print(f"{series.name}, {runs}: {point.wall_s:.0f} s, {point.cpu_s:.0f} s of CPU", file=sys.stderr)

    results = []
    for series in all_series:
        numbers = [runs for runs in _run_numbers(series, options) if points[series.name, runs]]
        medians = tuple(median_point(points[series.name, runs]) for runs in numbers)
        if medians:
            results.append(SeriesFigures(series.name, options.latency, medians))
    return results, problems


def write_json(options: argparse.Namespace, results: Sequence[SeriesFigures]) -> None:
    """Write the figures, the command and the machine to a file. With `--only`, the other series remain in the file."""
    records = document(results)
    if options.only and options.json.exists():
        records = [*json.loads(options.json.read_text("utf-8"))["series"], *records]
    record_of = {record["name"]: record for record in records}

    contents = {
        "command": sys.argv[1:],
        "rounds": options.rounds,
        "python": platform.python_version(),
        "system": platform.platform(),
        "cpus": os.cpu_count(),
        "series": [record_of[series.name] for series in SERIES if series.name in record_of],
    }
    options.json.write_text(json.dumps(contents, indent=1) + "\n", "utf-8")


def _run_numbers(series: Series, options: argparse.Namespace) -> Sequence[int]:
    """Return the numbers of tasks for a batch, and the numbers of concurrent runs for other series."""
    numbers: Sequence[int] = options.tasks if series.way == BATCH else options.at_once
    return numbers


def _measure_point(series: Series, runs: int, url: str, server: str | None) -> Point:
    from tests.postgres import fresh_database

    with ExitStack() as stack:
        store_url = None
        if series.shared and server:
            store_url = stack.enter_context(fresh_database(server))

        if series.way == BATCH:
            return measure_batch(series, url, store_url, runs)
        with Crew(series, url, store_url) as crew:
            return crew.measure(max(runs, series.processes))


@contextmanager
def _server(url: str | None) -> Iterator[str | None]:
    """Yield the address of a PostgreSQL server, which is started if needed; None, with a message, if that fails."""
    from tests.postgres import MISSING, postgres_programs, postgres_server

    if url:
        yield url
    elif postgres_programs() is None:
        print(f"Excluded: {MISSING}", file=sys.stderr)
        yield None
    else:
        with postgres_server() as started_url:
            yield started_url


def _numbers(text: str) -> tuple[int, ...]:
    numbers = tuple(sorted({int(number) for number in text.split(",")}))
    if not numbers or numbers[0] < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of positive numbers")
    return numbers


if __name__ == "__main__":
    sys.exit(main())
