"""Shell commands for the steps. Standard library only."""

import shlex
import sys
from pathlib import PurePath

from benchmarks.redteam.steps import Step

_REPLACE = "import sys; p, old, new = sys.argv[1:]; t = open(p).read(); open(p, 'w').write(t.replace(old, new, 1))"
_FETCH = "import sys, urllib.request; print(urllib.request.urlopen(sys.argv[1], None, 10).read().decode())"


def argv_of(step: Step) -> list[str]:
    """Return the program and arguments of a step. `python` is this interpreter, because some systems lack it."""
    program, *arguments = step.argv or ("",)
    if program == "python":
        program = sys.executable
    return [program, *arguments]


def command_of(step: Step) -> str | None:
    """Return the shell command for a step; None if there is none."""
    path = shlex.quote(step.target)
    folder = shlex.quote(str(PurePath(step.target).parent))
    commands = {
        "read": f"cat {path}",
        "write": f"mkdir -p {folder} && printf %s {shlex.quote(step.text)} > {path}",
        "edit": shlex.join(["python3", "-c", _REPLACE, step.target, step.text, step.new]),
        "delete": f"rm -rf {path}",
        "run": shlex.join(argv_of(step)),
        "fetch": shlex.join(["python3", "-c", _FETCH, step.target]),
        "search": f"grep -rn {path} .",
        "list": f"ls -a {path}",
        "remember": f"printf %s {shlex.quote(step.text)} >> AGENTS.md",
    }
    return commands.get(step.act)
