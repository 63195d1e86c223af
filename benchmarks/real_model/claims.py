"""The child process of a check: says which claim about the program in the current folder is the first not to hold.

It is run as a script, by `python -I`, and imports nothing of ours. In comes one JSON object with `setup` (statements)
and `claims` (expressions), out goes one with `problem` (a sentence or null). What the program under test prints goes
nowhere. Setup and claims find `read`, `raises` and `run` beside Python's own names.
"""

import json
import os
import resource
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

CPU_SECONDS = 10
MEMORY_BYTES = 2 * 1024**3
FILE_BYTES = 10 * 1024**2


def read(path: str) -> str:
    """The text of a file, with its own line ends."""
    with open(path, encoding="utf-8", newline="") as file:
        return file.read()


def raises(kind: type[BaseException], function: Callable[..., object], *arguments: object) -> bool:
    """Whether the call ends in this exception."""
    try:
        function(*arguments)
    except kind:
        return True
    return False


def run(*arguments: str) -> tuple[int, str]:
    """Run a Python program of this folder; its exit code and what it printed."""
    command = [sys.executable, "-B", *arguments]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=False)
    return done.returncode, done.stdout


def first_problem(setup: str, claims: list[str]) -> str | None:
    """Run the setup, then the claims until one does not hold; None if all do."""
    names: dict[str, Any] = {"read": read, "raises": raises, "run": run}
    try:
        exec(setup, names)
    except BaseException as error:  # noqa: BLE001 - the program may raise anything, SystemExit too
        return f"The hidden tests could not start: {said(error)}"
    for claim in claims:
        try:
            holds = eval(claim, names)
        except BaseException as error:  # noqa: BLE001 - as above
            return f"{claim} raised {said(error)}"
        if not holds:
            return f"This does not hold: {claim}"
    return None


def said(error: BaseException) -> str:
    """An exception in one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:300]


def limit() -> None:
    """Bound what the program can use up."""
    for kind, bound in (
        (resource.RLIMIT_CPU, CPU_SECONDS),
        (resource.RLIMIT_AS, MEMORY_BYTES),
        (resource.RLIMIT_FSIZE, FILE_BYTES),
    ):
        hard = resource.getrlimit(kind)[1]
        with suppress(ValueError, OSError):  # macOS refuses RLIMIT_AS
            resource.setrlimit(kind, (bound if hard == resource.RLIM_INFINITY else min(bound, hard), hard))


def main() -> None:
    """Judge one program."""
    job = json.load(sys.stdin)
    limit()
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as verdict, open(os.devnull, "r+b") as nothing:
        for stream in range(3):
            os.dup2(nothing.fileno(), stream)
        sys.path.insert(0, os.getcwd())
        json.dump({"problem": first_problem(job["setup"], job["claims"])}, verdict)
        verdict.flush()
    os._exit(0)  # whatever threads or exit hooks the program has left


if __name__ == "__main__":
    main()
