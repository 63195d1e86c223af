"""Which programs may be run, what is a command line at all, and what a program learns of us."""

import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from nodes.execute_tools.environment.bubblewrap import HOME, PROGRAM_FOLDERS, SCRATCH
from nodes.execute_tools.environment.failures import quoted
from nodes.execute_tools.environment.resource_limits import ResourceLimits, command_limits
from nodes.records import ToolError, ToolErrorCode

MOST_ARGUMENTS: Final = 1_000
LONGEST_ARGUMENTS: Final = 100_000
"""Bytes of all arguments together. Source: Linux takes 131,072 in one argument."""

_NEVER_SHOWN = ("/dev", "/proc", "/run", "/sys")
"""They lead to other processes, to devices and to services outside of the sandbox."""


@dataclass(frozen=True)
class CommandRules:
    """Which programs a run may start, and how.

    `programs` are allowed by bare name (`make`), or by exactly this path: absolute, or relative to the workspace
    (`.venv/bin/pytest`). One with an absolute path may be called by its last part as well. After `soft_timeout_s`
    seconds a command is asked to end, `grace_s` later all of it is killed. Of each of its outputs `max_output_bytes`
    are kept, half of them from the end. `readable` names more folders of the machine that programs may read, such as
    that of a language's own installation. `limits` bound what all processes of a command use together.
    """

    programs: tuple[str, ...] = ()
    soft_timeout_s: float = 30.0
    grace_s: float = 0.2
    max_output_bytes: int = 16_000
    readable: tuple[str, ...] = ()
    limits: ResourceLimits = field(default_factory=command_limits)


def malformed_command(argv: Sequence[str]) -> ToolError | None:
    """Why this is no command line."""
    try:
        sizes = [len(each.encode()) + 1 for each in argv]
    except UnicodeEncodeError:
        return _invalid("An argument of the command is not valid Unicode text.")
    if not argv or not argv[0]:
        return _invalid("The command is empty: name a program, and its arguments one by one.")
    if any("\0" in each for each in argv):
        return _invalid("An argument of the command contains a NUL character.")
    if len(argv) > MOST_ARGUMENTS or sum(sizes) > LONGEST_ARGUMENTS:
        return _invalid(
            f"The command is too long: {MOST_ARGUMENTS} arguments and {LONGEST_ARGUMENTS} bytes are allowed."
            " Write a long input to a file, and name that."
        )
    return None


def find_program(name: str, rules: CommandRules, root: str, path: str) -> str | ToolError:
    """The absolute name of an allowed program; a bare name is looked for on `path`, other names are below `root`."""
    if name not in rules.programs:
        absolute = [each for each in rules.programs if os.path.isabs(each) and os.path.basename(each) == name]
        if name and absolute:
            return os.path.normpath(absolute[0])
        known = f"allowed are {', '.join(rules.programs)}" if rules.programs else "no program is allowed"
        message = f"{quoted(name)} may not be run: {known}."
        return ToolError(code=ToolErrorCode.PERMISSION_DENIED, message=message, suggestions=rules.programs)
    found = os.path.normpath(os.path.join(root, name)) if "/" in name else shutil.which(name, path=path)
    if found is not None:
        return found
    message = (
        f"The program {quoted(name)} is not installed where commands can see it. Whoever starts the run can allow it by"
        " its absolute path in `allowed_programs` (`--allow-program`), or show its folder in `readable_folders`."
    )
    return ToolError(code=ToolErrorCode.NOT_FOUND, message=message)


def readable_folders(rules: CommandRules) -> tuple[str, ...] | ToolError:
    """The real names of what is shown beside the system: where our own Python is installed, and what is asked for."""
    found = [*own_installation()]
    for name in rules.readable:
        asked = os.path.expanduser(name)
        real = os.path.realpath(asked)
        unsafe = real == "/" or any(_is_below(real, each) for each in _NEVER_SHOWN)
        is_there = os.path.isdir(real) or os.path.isfile(real)  # a socket would lead out
        if not os.path.isabs(asked) or not is_there or unsafe:
            message = (
                f"{quoted(name)} cannot be shown to commands: name an existing folder by its absolute path, and none of"
                f" / {' '.join(_NEVER_SHOWN)}."
            )
            return ToolError(code=ToolErrorCode.INVALID_ARGUMENT, message=message)
        found.append(real)
    return tuple(dict.fromkeys(found))


def command_environment(root: str, readable: Sequence[str]) -> dict[str, str]:
    """All the variables that a program gets: no secrets, and nothing that leads back to our own virtualenv."""
    return {
        "PATH": ":".join(_program_folders(root, readable)),
        "LANG": os.environ.get("LANG", "C.UTF-8"),
        "HOME": HOME,
        "TMPDIR": SCRATCH,
    }


def _invalid(message: str) -> ToolError:
    return ToolError(code=ToolErrorCode.INVALID_ARGUMENT, message=message)


def own_installation() -> tuple[str, ...]:
    """Where our Python is installed, unless that is the system or holds somebody's home."""
    prefix, home = os.path.realpath(sys.base_prefix), os.path.realpath(os.path.expanduser("~"))
    return () if _is_below(prefix, "/usr") or _is_below(home, prefix) else (prefix,)


def _program_folders(root: str, readable: Sequence[str]) -> Iterator[str]:
    """Our PATH without the folders that a program cannot see, those of the workspace and of our own virtualenv."""
    shown = ("/usr", *readable)
    own = os.path.realpath(sys.prefix) if sys.prefix != sys.base_prefix else None
    asked = [os.path.realpath(each) for each in os.environ.get("PATH", "").split(":") if os.path.isabs(each)]
    ours = [folder for each in readable if os.path.isdir(folder := os.path.join(each, "bin"))]
    system = [os.path.realpath(each) for each in PROGRAM_FOLDERS]
    for folder in dict.fromkeys((*asked, *ours, *system)):
        hidden = _is_below(folder, root) or (own is not None and _is_below(folder, own))
        if not hidden and (folder in system or any(_is_below(folder, each) for each in shown)):
            yield folder


def _is_below(name: str, folder: str) -> bool:
    return name == folder or name.startswith(f"{folder.rstrip('/')}/")
