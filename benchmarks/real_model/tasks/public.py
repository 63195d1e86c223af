"""Public tasks, read from what their authors publish: exercism's Python exercises, and HumanEvalFix.

Neither is kept here. `make eval ARGS="--set exercism"` looks below `.tools/data` for it, and clones it there where
it is missing. Without a network, put the two repositories there by hand:

    .tools/data/exercism-python    https://github.com/exercism/python
    .tools/data/octopack           https://github.com/bigcode-project/octopack

Tasks stand in the order of their names. Every tenth is "dev" and may be looked at while the harness is tuned. Two
exercises are no tasks, as what they begin with passes its tests: ledger and markdown, which are to be refactored.
"""

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.real_model.checking import SECONDS, Holds, run_in_copy
from benchmarks.real_model.child import root_of_project
from benchmarks.real_model.task import Half, Task

DATA = root_of_project() / ".tools" / "data"
EXERCISM, OCTOPACK = "exercism-python", "octopack"
SOURCES = {
    EXERCISM: "https://github.com/exercism/python",
    OCTOPACK: "https://github.com/bigcode-project/octopack",
}
REFACTORED = frozenset({"ledger", "markdown"})
REPAIRS = "evaluation/create/humaneval-x/data/python/data/humanevalpack.jsonl"
SHOWN_LINES = 50
"""Lines of a failing test's output that the second request holds. Source: aider, benchmark/benchmark.py."""

REQUEST = """\
{instructions}

####

Use the above instructions to modify the supplied files: {file}
Don't change the names of existing functions or classes, as they may be referenced from other code like unit tests, etc.
Only use standard python libraries, don't suggest installing any packages.
"""
AGAIN = """\
####

See the testing errors above.
The tests are correct.
Fix the code in {file} to resolve the errors.
"""
"""Source: aider, benchmark/prompts.py, to the letter."""


@dataclass(frozen=True)
class PassesTests:
    """The exercise's own tests pass, which are laid into a copy of the workspace."""

    name: str
    tests: str

    def __call__(self, workspace: Path, answer: str) -> str | None:  # noqa: ARG002 - every check is given both
        """The first lines of what pytest says."""
        program = f"import pathlib, pytest; pathlib.Path({self.name!r}).write_text({self.tests!r}); "
        program += f"print('exit', int(pytest.main(['-q', '--tb=short', '-p', 'no:cacheprovider', {self.name!r}])))"
        said = run_in_copy(workspace, [sys.executable, "-B", "-c", program], "")
        if said is None:
            return f"The tests did not end within {SECONDS:g} s."
        *lines, last = said.splitlines() or [""]
        return None if last == "exit 0" else "\n".join(lines[:SHOWN_LINES])


def exercism(folder: Path = DATA) -> tuple[Task, ...]:
    """An exercise for each folder, in two tries: the second has the output of the tests, as in aider's benchmark."""
    return tuple(_exercises(fetched(EXERCISM, folder) / "exercises" / "practice"))


def _exercises(practice: Path) -> Iterator[Task]:
    folders = sorted(path for path in practice.iterdir() if path.is_dir() and path.name not in REFACTORED)
    for place, folder in enumerate(folders):
        files = json.loads((folder / ".meta/config.json").read_text("utf-8"))["files"]
        (solution, *others), (tests, *_) = files["solution"], files["test"]
        told = [folder / ".docs" / f"{name}.md" for name in ("introduction", "instructions", "instructions.append")]
        texts = [path.read_text("utf-8") for path in told if path.is_file()]
        yield Task(
            name=folder.name.replace("-", "_"),
            kind="exercism",
            half=_half(place),
            request=REQUEST.format(instructions="\n\n".join(texts).strip(), file=solution),
            files={name: (folder / name).read_text("utf-8") for name in (solution, *others, *files.get("editor", ()))},
            check=PassesTests(tests, (folder / tests).read_text("utf-8")),
            changes=True,
            solution={solution: (folder / files["example"][0]).read_text("utf-8")},
            again=AGAIN.format(file=solution),
        )


def humanevalfix(folder: Path = DATA) -> tuple[Task, ...]:
    """A function with a bug and its documentation; the request is the one of HumanEvalFix, whose tests are hidden."""
    lines = (fetched(OCTOPACK, folder) / REPAIRS).read_text("utf-8").splitlines()
    repairs = sorted((json.loads(line) for line in lines), key=lambda repair: str(repair["entry_point"]))
    return tuple(
        Task(
            name=f"fix_{name}",
            kind="humanevalfix",
            half=_half(place),
            request=f"Fix bugs in {name}.",
            files={f"{name}.py": repair["prompt"] + repair["buggy_solution"]},
            check=Holds(f"from {name} import *\n{repair['test']}", ()),
            changes=True,
            solution={f"{name}.py": repair["prompt"] + repair["canonical_solution"]},
        )
        for place, repair in enumerate(repairs)
        for name in [str(repair["entry_point"])]
    )


def _half(place: int) -> Half:
    return "held_out" if place % 10 else "dev"


def fetched(name: str, folder: Path) -> Path:
    """The folder of a source, which is cloned where it is not there.

    Raises:
        OSError: it cannot be had; the message says what to put where.
    """
    place, address = folder / name, SOURCES[name]
    if not place.is_dir():
        git = ["git", "clone", "--quiet", "--depth", "1", address, str(place)]
        if subprocess.run(git, check=False).returncode:
            raise OSError(f"{address} cannot be fetched: put a clone of it at {place}.")
    return place
