"""The command line of an evaluation: what is run, and what that is called. Pure."""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.real_model.record import default_label
from benchmarks.real_model.rivals.environments import RIVALS
from benchmarks.real_model.task import Task
from mendgraph.nodes.records import Record

HERE = Path(__file__).parent
SETS = ("own", "orders", "exercism", "humanevalfix")


class Choice(Record):
    """What the command line says. `options` are fields of `AgentContext`."""

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


def read_choice(arguments: Sequence[str], about: str) -> Choice:
    """Read the command line. Ends the program, with the reason, where it cannot be understood."""
    parser = _parser(about)
    said = parser.parse_args(arguments)
    try:
        options = dict(_option(each) for each in said.option)
    except ValueError as error:
        parser.error(str(error))
    if said.every < 1:
        parser.error(f"--every {said.every} is not 1 or more")
    if said.protocol:
        options["protocol"] = said.protocol
    rivals = tuple(said.against or (RIVALS if said.only_rivals else ()))
    if unknown := sorted(set(rivals) - set(RIVALS)):
        parser.error(f"no rival is called {', '.join(unknown)}: there are {', '.join(RIVALS)}")
    return Choice(
        tasks_of=said.tasks_of,
        half=said.half,
        every=said.every,
        tasks=said.tasks,
        rivals=rivals,
        ours=not said.only_rivals,
        ablate=said.ablate,
        label=said.label or default_label(said.protocol, said.option),
        options=options,
        fresh=said.fresh,
        cache=said.cache,
        out=said.out,
    )


def chosen_tasks(every: Sequence[Task], choice: Choice) -> list[Task]:
    """The tasks of the half, every so many-th, or those that are named. ValueError for a name that no task has."""
    names = {task.name for task in every}
    if unknown := sorted(set(choice.tasks) - names):
        raise ValueError(f"no task is called {', '.join(unknown)}: there are {', '.join(sorted(names))}")
    wanted = [task for task in every if task.name in choice.tasks] if choice.tasks else every[:: choice.every]
    return [task for task in wanted if choice.half in ("all", task.half)]


def _parser(about: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--set", dest="tasks_of", choices=SETS, default="own", help="our own tasks, or public ones")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="every N-th task of them, by name")
    parser.add_argument("--half", choices=("dev", "held_out", "all"), default="all", help="which half of the tasks")
    parser.add_argument("--tasks", type=_names, default=(), metavar="A,B", help="these tasks only")
    parser.add_argument("--against", type=_names, default=(), metavar="A,B", help=f"rivals: {','.join(RIVALS)}")
    parser.add_argument("--only-rivals", action="store_true", help="leave our own harness out")
    parser.add_argument("--protocol", choices=("text", "native"), help="ours with this protocol")
    parser.add_argument("--option", action="append", default=[], metavar="KEY=VALUE", help="a field of AgentContext")
    parser.add_argument("--label", help="what these settings are called in the table (default: the settings)")
    parser.add_argument("--ablate", action="store_true", help="ours once more without each of its means")
    again = parser.add_mutually_exclusive_group()
    again.add_argument(
        "--resume", dest="fresh", action="store_false", default=False, help="go on: skip what has a result (default)"
    )
    again.add_argument("--fresh", action="store_true", help="run again what has a result")
    parser.add_argument("--no-cache", dest="cache", action="store_false", help="compute each reply anew")
    parser.add_argument("--out", type=Path, default=HERE / "results", help="folder of the results")
    return parser


def _names(text: str) -> tuple[str, ...]:
    return tuple(name for each in text.split(",") if (name := each.strip()))


def _option(text: str) -> tuple[str, Any]:
    """`key=value`, the value read as JSON where it is that, as text otherwise."""
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise ValueError(f"--option {text} is not of the form key=value")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value
