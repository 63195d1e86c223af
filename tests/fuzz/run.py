"""`make fuzz`: attacks all targets, or some, for a chosen time, and keeps what it finds as files.

Exits 1 where something was found, which it shows with the command that plays it again, and 0 where nothing was.
"""

import argparse
import logging
import os
import random
import sys
from collections.abc import Sequence
from math import inf
from pathlib import Path
from typing import Final

from tests.architecture.product import ROOT
from tests.fuzz.campaign import attack, error_of
from tests.fuzz.case import REGRESSIONS, Case, load
from tests.fuzz.target import Target
from tests.fuzz.targets import TARGETS

FOUND: Final = ROOT / ".fuzz"
SHOWN: Final = 2_000
"""Characters of an input that are shown; the file holds all of it."""


def main(arguments: Sequence[str], targets: dict[str, Target] = TARGETS, folder: Path = FOUND) -> int:
    """Do what the command line says; cases go into `folder`. Gives the exit code."""
    asked = _parser(targets).parse_args(arguments)
    if asked.list:
        _say(*targets)
        return 0
    found = _played(asked.case, targets) if asked.case else _attacked(asked, targets, folder)
    return 1 if found else 0


def _attacked(asked: argparse.Namespace, targets: dict[str, Target], folder: Path) -> int:
    """Attack what was asked for; how many cases were found."""
    names = asked.target or [*targets]
    first_seed = random.randrange(2**32) if asked.seed is None else asked.seed
    _say(f"{len(names)} targets in {asked.seconds:g} s, --seed {first_seed}")
    found = 0
    for name in names:
        course = attack(targets[name], first_seed, seconds=asked.seconds / len(names))
        rate = course.examples / max(course.seconds, 1e-9)
        _say(f"{name:24}{course.examples:>9,} examples {rate:>7,.0f}/s  {'FOUND' if course.found else 'holds'}")
        if course.found:
            found += 1
            _tell(course.found)
            path, kept = (os.path.relpath(each) for each in (course.found.save(folder), REGRESSIONS))
            _say(f'  again:    make fuzz ARGS="--case {path}"', f"  repaired: mv {path} {kept}")
    return found


def _played(paths: Sequence[Path], targets: dict[str, Target]) -> int:
    """Play these cases; how many of them are still handled wrongly."""
    wrong = 0
    for path in paths:
        case = load(path)
        error = error_of(targets[case.target], case.input)
        wrong += error is not None
        _say(f"{path}: holds") if error is None else _tell(case._replace(error=error))
    return wrong


def _tell(case: Case) -> None:
    _say(f"\n{case.target}: {case.error[:SHOWN]}", f"  input:    {ascii(case.input)[:SHOWN]}")


def _say(*lines: str) -> None:
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    sys.stdout.flush()


def _parser(targets: dict[str, Target]) -> argparse.ArgumentParser:
    def case(text: str) -> Path:
        try:
            named = load(Path(text)).target
        except (OSError, ValueError, TypeError) as error:
            raise argparse.ArgumentTypeError(f"{text} is no case of `make fuzz` ({error})") from error
        if named not in targets:
            raise argparse.ArgumentTypeError(f"{text}: there is no target {named!r}")
        return Path(text)

    parser = argparse.ArgumentParser("make fuzz", description=__doc__)
    parser.add_argument("--seconds", type=_positive, default=60.0, help="for all targets together (default 60)")
    parser.add_argument("--target", action="append", choices=targets, metavar="NAME", help="only this one (repeatable)")
    parser.add_argument("--seed", type=int, help="the number that a run has shown, for the same inputs again")
    parser.add_argument("--case", action="append", type=case, metavar="FILE", help="play a case that was found")
    parser.add_argument("--list", action="store_true", help="the names of all targets")
    return parser


def _positive(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < inf:
        raise argparse.ArgumentTypeError(f"{text} is no time: give seconds above 0")
    return seconds


if __name__ == "__main__":
    logging.disable()  # what LangGraph says of each type that it refuses
    sys.exit(main(sys.argv[1:]))
