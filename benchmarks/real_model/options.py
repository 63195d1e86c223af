"""The command line of an evaluation. Pure."""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.real_model.record import default_label
from benchmarks.real_model.rivals.environments import RIVALS
from benchmarks.real_model.task import Task
from mendgraph.nodes.records import Record

FOLDER = Path(__file__).parent
SETS = ("own", "orders", "exercism", "humanevalfix")


class EvaluationOptions(Record):
    """The options of the command. `options` are fields of `AgentContext`."""

    tasks_of: str
    half: str
    every: int
    tasks: tuple[str, ...]
    rivals: tuple[str, ...]
    ours: bool
    ablate: bool
    label: str
    options: dict[str, Any]
    fresh: bool
    cache: bool
    out: Path


def parse_arguments(arguments: Sequence[str], description: str) -> EvaluationOptions:
    """Parse the command line. Exits with a message if it is invalid."""
    parser = _parser(description)
    namespace = parser.parse_args(arguments)

    try:
        context_options = dict(_parse_option(text) for text in namespace.option)
    except ValueError as error:
        parser.error(str(error))
    if namespace.protocol:
        context_options["protocol"] = namespace.protocol

    if namespace.every < 1:
        parser.error(f"--every must be at least 1, not {namespace.every}")
    rivals = tuple(namespace.against)
    if namespace.only_rivals and not rivals:
        rivals = tuple(RIVALS)
    if unknown := sorted(set(rivals) - set(RIVALS)):
        parser.error(f"unknown rivals: {', '.join(unknown)}; the rivals are {', '.join(RIVALS)}")

    return EvaluationOptions(
        tasks_of=namespace.tasks_of,
        half=namespace.half,
        every=namespace.every,
        tasks=namespace.tasks,
        rivals=rivals,
        ours=not namespace.only_rivals,
        ablate=namespace.ablate,
        label=namespace.label or default_label(namespace.protocol, namespace.option),
        options=context_options,
        fresh=namespace.fresh,
        cache=namespace.cache,
        out=namespace.out,
    )


def select_tasks(tasks: Sequence[Task], options: EvaluationOptions) -> list[Task]:
    """Return the tasks of the half: those with the given names, or every N-th.

    Raises:
        ValueError: A name is unknown.
    """
    names = {task.name for task in tasks}
    if unknown := sorted(set(options.tasks) - names):
        raise ValueError(f"unknown tasks: {', '.join(unknown)}; the tasks are {', '.join(sorted(names))}")

    if options.tasks:
        selection = [task for task in tasks if task.name in options.tasks]
    else:
        selection = list(tasks[:: options.every])
    return [task for task in selection if options.half in ("all", task.half)]


def _parser(description: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--set", dest="tasks_of", choices=SETS, default="own", help="the set of tasks (%(default)s)")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="run every N-th task by name")
    parser.add_argument("--half", choices=("dev", "held_out", "all"), default="all", help="run this half of the tasks")
    parser.add_argument("--tasks", type=_names, default=(), metavar="A,B", help="run only these tasks")
    parser.add_argument("--against", type=_names, default=(), metavar="A,B", help=f"rivals: {','.join(RIVALS)}")
    parser.add_argument("--only-rivals", action="store_true", help="do not run mendgraph")
    parser.add_argument("--protocol", choices=("text", "native"), help="the protocol of mendgraph")
    parser.add_argument("--option", action="append", default=[], metavar="KEY=VALUE", help="a field of AgentContext")
    parser.add_argument("--label", help="the name of these settings in the table (default: the settings)")
    parser.add_argument("--ablate", action="store_true", help="also run mendgraph without each of its parts")
    existing_results = parser.add_mutually_exclusive_group()
    existing_results.add_argument(
        "--resume", dest="fresh", action="store_false", default=False, help="skip runs with a result (default)"
    )
    existing_results.add_argument("--fresh", action="store_true", help="repeat runs with a result")
    parser.add_argument("--no-cache", dest="cache", action="store_false", help="do not replay cached replies")
    parser.add_argument("--out", type=Path, default=FOLDER / "results", help="the folder of the results")
    return parser


def _names(text: str) -> tuple[str, ...]:
    names = (name.strip() for name in text.split(","))
    return tuple(name for name in names if name)


def _parse_option(text: str) -> tuple[str, Any]:
    """Parse `key=value`. The value is JSON, or otherwise a text."""
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise ValueError(f"--option {text} is not of the form key=value")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value
