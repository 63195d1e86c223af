"""Public tasks from their authors' repositories: exercism's Python exercises, and HumanEvalFix.

This repository has no copy of them. `make eval ARGS="--set exercism"` reads them from `.tools/data`, and clones a
missing repository. Without a network, clone the two repositories by hand:

    .tools/data/exercism-python    https://github.com/exercism/python
    .tools/data/octopack           https://github.com/bigcode-project/octopack

Tasks are sorted by name. Every tenth task is "dev", for tuning the harness. Two exercises are excluded, because they
only ask for a refactoring and pass their tests from the beginning: ledger and markdown.
"""

import json
import subprocess
import sys
from collections.abc import Mapping
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
"""The maximum of lines of the tests' output in the second request. Source: aider, benchmark/benchmark.py."""

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
"""Source: aider, benchmark/prompts.py, verbatim."""


@dataclass(frozen=True)
class PassesTests:
    """The exercise's tests pass in a copy of the workspace."""

    name: str
    tests: str

    def __call__(self, workspace: Path, answer: str) -> str | None:  # noqa: ARG002 - the signature of a check
        """Return the first lines of pytest's output."""
        program = f"import pathlib, pytest; pathlib.Path({self.name!r}).write_text({self.tests!r}); "
        program += f"print('exit', int(pytest.main(['-q', '--tb=short', '-p', 'no:cacheprovider', {self.name!r}])))"
        output = run_in_copy(workspace, [sys.executable, "-B", "-c", program], "")
        if output is None:
            return f"The tests did not end within {SECONDS:g} s."

        *lines, last = output.splitlines() or [""]
        if last == "exit 0":
            return None
        return "\n".join(lines[:SHOWN_LINES])


def exercism(folder: Path = DATA) -> tuple[Task, ...]:
    """Return a task with two tries for each exercise. As in aider's benchmark, the second has the tests' output."""
    practice = clone_source(EXERCISM, folder) / "exercises" / "practice"
    folders = sorted(path for path in practice.iterdir() if path.is_dir() and path.name not in REFACTORED)
    return tuple(_exercise(path, _half(index)) for index, path in enumerate(folders))


def _exercise(folder: Path, half: Half) -> Task:
    files = json.loads((folder / ".meta/config.json").read_text("utf-8"))["files"]
    solution = files["solution"][0]
    tests = files["test"][0]
    paths = [*files["solution"], *files.get("editor", ())]
    return Task(
        name=folder.name.replace("-", "_"),
        kind="exercism",
        half=half,
        request=REQUEST.format(instructions=_instructions(folder / ".docs"), file=solution),
        files={path: (folder / path).read_text("utf-8") for path in paths},
        check=PassesTests(tests, (folder / tests).read_text("utf-8")),
        changes=True,
        solution={solution: (folder / files["example"][0]).read_text("utf-8")},
        again=AGAIN.format(file=solution),
    )


def _instructions(docs: Path) -> str:
    files = [docs / f"{name}.md" for name in ("introduction", "instructions", "instructions.append")]
    texts = [file.read_text("utf-8") for file in files if file.is_file()]
    return "\n\n".join(texts).strip()


def humanevalfix(folder: Path = DATA) -> tuple[Task, ...]:
    """Return a task for each function with a bug. The request is that of HumanEvalFix, and its tests are hidden."""
    lines = (clone_source(OCTOPACK, folder) / REPAIRS).read_text("utf-8").splitlines()
    repairs = sorted((json.loads(line) for line in lines), key=lambda repair: str(repair["entry_point"]))
    return tuple(_repair(repair, _half(index)) for index, repair in enumerate(repairs))


def _repair(repair: Mapping[str, str], half: Half) -> Task:
    name = str(repair["entry_point"])
    return Task(
        name=f"fix_{name}",
        kind="humanevalfix",
        half=half,
        request=f"Fix bugs in {name}.",
        files={f"{name}.py": repair["prompt"] + repair["buggy_solution"]},
        check=Holds(f"from {name} import *\n{repair['test']}", ()),
        changes=True,
        solution={f"{name}.py": repair["prompt"] + repair["canonical_solution"]},
    )


def _half(index: int) -> Half:
    return "held_out" if index % 10 else "dev"


def clone_source(name: str, folder: Path) -> Path:
    """Return the folder of a source, after cloning it if needed.

    Raises:
        OSError: The clone fails. The message names the repository and the folder.
    """
    target = folder / name
    if target.is_dir():
        return target

    address = SOURCES[name]
    command = ["git", "clone", "--quiet", "--depth", "1", address, str(target)]
    if subprocess.run(command, check=False).returncode:
        raise OSError(f"{address} cannot be cloned: put a clone of it at {target}.")
    return target
