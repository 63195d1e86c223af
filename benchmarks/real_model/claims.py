"""The child process of a check, which finds the first false claim about the program in the current folder.

It runs as a script by `python -I` and imports only the standard library. It reads a JSON object with `setup`
(statements) and `claims` (expressions), and prints one with `problem` (a sentence or null). The output of the tested
program is discarded. Setup and claims can use `read`, `raises` and `run` besides Python's builtins.
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
    """Return the text of a file with its original line ends."""
    with open(path, encoding="utf-8", newline="") as file:
        return file.read()


def raises(kind: type[BaseException], function: Callable[..., object], *arguments: object) -> bool:
    """Whether the call raises this exception."""
    try:
        function(*arguments)
    except kind:
        return True
    return False


def run(*arguments: str) -> tuple[int, str]:
    """Run a Python program of this folder, and return its exit code and output."""
    command = [sys.executable, "-B", *arguments]
    process = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=False)
    return process.returncode, process.stdout


def first_problem(setup: str, claims: list[str]) -> str | None:
    """Run the setup and the claims up to the first false claim; return the problem, or None."""
    names: dict[str, Any] = {"read": read, "raises": raises, "run": run}
    try:
        exec(setup, names)
    except BaseException as error:  # noqa: BLE001 - the program may raise any exception, also SystemExit
        return f"The hidden tests could not start: {describe(error)}"

    for claim in claims:
        try:
            holds = eval(claim, names)
        except BaseException as error:  # noqa: BLE001 - as above
            return f"{claim} raised {describe(error)}"
        if not holds:
            return f"This does not hold: {claim}"
    return None


def describe(error: BaseException) -> str:
    """Return an exception in one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:300]


def set_limits() -> None:
    """Limit the CPU time, memory and file size of this process."""
    limits = (
        (resource.RLIMIT_CPU, CPU_SECONDS),
        (resource.RLIMIT_AS, MEMORY_BYTES),
        (resource.RLIMIT_FSIZE, FILE_BYTES),
    )
    for kind, limit in limits:
        _, hard_limit = resource.getrlimit(kind)
        soft_limit = limit if hard_limit == resource.RLIM_INFINITY else min(limit, hard_limit)
        with suppress(ValueError, OSError):  # macOS does not support RLIMIT_AS
            resource.setrlimit(kind, (soft_limit, hard_limit))


def main() -> None:
    """Check one program."""
    job = json.load(sys.stdin)
    set_limits()
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as output, open(os.devnull, "r+b") as null:
        for stream in range(3):
            os.dup2(null.fileno(), stream)
        sys.path.insert(0, os.getcwd())
        json.dump({"problem": first_problem(job["setup"], job["claims"])}, output)
        output.flush()
    os._exit(0)  # without the threads and exit hooks of the program


if __name__ == "__main__":
    main()
