"""The programs that a run may start, and the folders and environment variables that they get."""

import os
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from mendgraph.nodes.execute_tools.commands.copied_project import editable_folders
from mendgraph.nodes.language.command_lines import is_command_line, listed_forms
from mendgraph.nodes.language.command_lists import listed_commands
from mendgraph.nodes.language.display import listed
from mendgraph.nodes.records import ToolError, ToolErrorCode, invalid, quoted
from mendgraph.nodes.workspace.files.sandbox import is_below
from mendgraph.nodes.workspace.processes.resource_limits import ResourceLimits, command_limits
from mendgraph.nodes.workspace.sandboxes.backends import AUTO
from mendgraph.nodes.workspace.sandboxes.sandbox import HOME, PROGRAM_FOLDERS, SCRATCH

_NEVER_READABLE: Final = ("/dev", "/proc", "/run", "/sys")
"""Folders that lead to other processes, devices, and services outside of the sandbox."""

_ENTERS: Final = re.compile(r"""\s*cd\s+(['"]?)([\w./-]+)\1\s*(?:&&|;)""")

_LAUNCHERS: Final = frozenset({"hatch", "nox", "pdm", "pipenv", "poetry", "tox", "uv"})
"""Programs that prepare an environment before they start a program in it, for which they need the network."""

_READING_TOOLS: Final[Mapping[str, str]] = MappingProxyType(
    {
        **dict.fromkeys(("cat", "head", "nl", "sed", "tail", "wc"), "read_file"),
        **dict.fromkeys(("egrep", "grep", "rg"), "search_files"),
        **dict.fromkeys(("fd", "find"), "glob_files"),
        **dict.fromkeys(("ls", "tree"), "list_files"),
    }
)
"""The tools that read files as these programs do."""


@dataclass(frozen=True)
class CommandRules:
    """Which programs a run may start, and how.

    `programs` are bare names (`make`) or paths, absolute or relative to the workspace, that are allowed exactly as they
    are; one with an absolute path may be called by its last part as well. `commands` are prefixes of simple commands
    (`git log`) that are allowed with any further arguments, also in a list of commands that a shell runs. After
    `soft_timeout_s` seconds a command gets SIGTERM, `grace_s` seconds later all of it is killed. Of each output
    `max_output_bytes` are stored, half of them from the end. `readable` are folders of the machine that programs may
    read, beside the system. `protected` are absolute names that no program may create, move or change in the workspace.
    `sandbox` is a kind of `choose_sandbox`. `pythons` are the interpreters of the project's environments, the best
    first: the programs of `ENVIRONMENT_PROGRAMS` are those beside the first one that can be started and has them.
    `variables` are more environment variables, with their values.
    """

    programs: tuple[str, ...] = ()
    soft_timeout_s: float = 30.0
    grace_s: float = 0.2
    max_output_bytes: int = 16_000
    readable: tuple[str, ...] = ()
    protected: tuple[str, ...] = ()
    limits: ResourceLimits = field(default_factory=command_limits)
    sandbox: str = AUTO
    commands: tuple[str, ...] = ()
    pythons: tuple[str, ...] = ()
    variables: tuple[tuple[str, str], ...] = ()


def find_program(
    name: str, rules: CommandRules, root: str, path: str, arguments: Sequence[str] = ()
) -> str | ToolError:
    """Return the absolute name of a program that is allowed, at least with these arguments.

    A bare name is searched on `path`, other names are relative to `root`; `python` may be called `python3`.
    PERMISSION_DENIED for a program that is not allowed, NOT_FOUND for one that is not installed.
    """
    if name not in rules.programs and not _is_listed([name, *arguments], rules.commands):
        for program in rules.programs:
            if name and os.path.isabs(program) and os.path.basename(program) == name:
                return os.path.normpath(program)

        names = (*rules.programs, *rules.commands)
        allowed = "no program is allowed"
        if names:
            allowed = f"allowed are {listed(names)}"

        manner = ""
        if any(line.partition(" ")[0] == name for line in rules.commands):
            manner = " with these arguments"

        remedy = _launcher_remedy(name, rules) or _reading_remedy([name, *arguments])
        message = f"{quoted(name)} may not be run{manner}: {allowed}.{remedy}"
        return ToolError(code=ToolErrorCode.PERMISSION_DENIED, message=message, suggestions=names)

    if "/" in name:
        return os.path.normpath(os.path.join(root, name))

    installed = shutil.which(name, path=path)
    if installed is None and name == "python":
        installed = shutil.which("python3", path=path)
    if installed is not None:
        return installed

    message = (
        f"The program {quoted(name)} is not installed where commands can see it. Whoever starts the run can allow it by"
        " its absolute path in `allowed_programs` (`--allow-program`), or show its folder in `readable_folders`."
        f"{_launcher_remedy(name, rules)}"
    )

    return ToolError(code=ToolErrorCode.NOT_FOUND, message=message)


def _launcher_remedy(name: str, rules: CommandRules) -> str:
    """Return what to do without a program that prepares the project's environment, "" for another program."""
    if name not in _LAUNCHERS:
        return ""

    example = next(iter(rules.commands), "pytest")
    return f" Commands use the project's environment without {name}: start its programs directly, such as {example!r}."


def _reading_remedy(argv: Sequence[str]) -> str:
    """Return which tools read what the refused programs would read, "" for other programs."""
    names = [words[0] for words in listed_commands(argv[2])] if is_command_line(argv) else argv[:1]
    tools = dict.fromkeys(_READING_TOOLS.get(name, "") for name in names)
    if not all(tools):
        return ""

    return f" Use {' and '.join(tools)} instead." if tools else ""


def _is_listed(argv: Sequence[str], commands: Sequence[str]) -> bool:
    """Return whether the command, or each one of a list of commands, begins with one of these prefixes."""
    if not commands:
        return False

    parts = listed_commands(argv[2]) if is_command_line(argv) else ()
    if parts:
        return all(_is_listed(part, commands) for part in parts)

    return any(form in commands for form in listed_forms(argv))


def readable_folders(rules: CommandRules) -> tuple[str, ...] | ToolError:
    """Return the real names of folders that programs may read beside the system's: our Python and `rules.readable`."""
    folders = [*own_installation()]

    for name in rules.readable:
        path = os.path.expanduser(name)

        if not may_be_readable(path):
            message = (
                f"{quoted(name)} cannot be shown to commands: name an existing folder by its absolute path, and none of"
                f" / {' '.join(_NEVER_READABLE)}."
            )

            return invalid(message)

        folders.append(os.path.realpath(path))

    return tuple(dict.fromkeys(folders))


def may_be_readable(path: str) -> bool:
    """Return whether this is the absolute name of a folder or file that programs may be allowed to read."""
    real = os.path.realpath(path)
    is_unsafe = real == "/" or any(is_below(real, folder) for folder in _NEVER_READABLE)
    exists = os.path.isdir(real) or os.path.isfile(real)  # a socket would lead out of the sandbox
    return os.path.isabs(path) and exists and not is_unsafe


def command_environment(root: str, readable: Sequence[str]) -> dict[str, str]:
    """Return all variables of a program: no secrets, and nothing that leads back to our own virtual environment.

    In a copy of a project, Python finds the project's packages in the copy.
    """
    env = {
        "PATH": ":".join(_program_folders(root, readable)),
        "LANG": os.environ.get("LANG", "C.UTF-8"),
        "HOME": HOME,
        "TMPDIR": SCRATCH,
    }
    folders = editable_folders(root, readable)
    if folders:
        env["PYTHONPATH"] = ":".join(folders)

    return env


def entered_folder(command: Sequence[str], cwd: str) -> str:
    """Return the folder in which a command line works if it begins with `cd FOLDER &&` or `cd FOLDER;`; else `cwd`."""
    entered = _ENTERS.match(command[2])
    return os.path.join(cwd, entered[2]) if entered else cwd


def own_installation() -> tuple[str, ...]:
    """Return the folder of our Python installation, unless that is `/usr` or contains the user's home."""
    prefix = os.path.realpath(sys.base_prefix)
    home = os.path.realpath(os.path.expanduser("~"))
    if is_below(prefix, "/usr") or is_below(home, prefix):
        return ()

    return (prefix,)


def _program_folders(root: str, readable: Sequence[str]) -> list[str]:
    """Our PATH without folders that a program cannot see, and those of the workspace and our virtual environment."""
    hidden_folders = [root]
    if sys.prefix != sys.base_prefix:
        hidden_folders.append(os.path.realpath(sys.prefix))

    path_folders = [os.path.realpath(part) for part in os.environ.get("PATH", "").split(":") if os.path.isabs(part)]
    readable_programs = [os.path.join(folder, "bin") for folder in readable]
    system_folders = [os.path.realpath(folder) for folder in PROGRAM_FOLDERS]
    visible_folders = [*system_folders, "/usr", *readable]
    result = []

    for folder in dict.fromkeys((*path_folders, *filter(os.path.isdir, readable_programs), *system_folders)):
        is_hidden = any(is_below(folder, hidden) for hidden in hidden_folders)
        if not is_hidden and any(is_below(folder, visible) for visible in visible_folders):
            result.append(folder)

    return result
