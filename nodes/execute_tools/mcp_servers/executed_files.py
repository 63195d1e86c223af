"""The files that an MCP server executes, which the agent must not change."""

import json
import os
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from tempfile import TemporaryDirectory
from typing import Final, NamedTuple

from mendgraph.nodes.workspace.files.sandbox import is_below
from mendgraph.nodes.workspace.processes.processes import ProcessResult, run_process

SEARCH_VARIABLES: Final = frozenset(
    {"PATH", "PYTHONPATH", "NODE_PATH", "PERL5LIB", "RUBYLIB", "CLASSPATH", "LD_LIBRARY_PATH"}
)
"""Variables with the directories in which programs and libraries are searched."""

PROBE_S: Final = 10.0
"""Seconds for Python to find a module."""

_PROBE_BYTES: Final = 65_536
_PROBE: Final = """
import importlib.util, json, sys
spec = importlib.util.find_spec(sys.argv[1])
print(json.dumps([spec.origin, *(spec.submodule_search_locations or ())] if spec else []))
"""
_PYTHON: Final = re.compile(r"(?:python|pypy)[\d.]*")
_FLAG: Final = re.compile(r"-[A-Za-z]*?([mcXW])")
_OPTIONS_WITH_VALUE: Final = frozenset({"--check-hash-based-pycs", "-X", "-W"})
_SEPARATORS: Final = re.compile(r"[=:,;]")
_MOST_LINKS: Final = 40
"""Most links of a chain of links. Source: Linux follows 40."""


class PythonTarget(NamedTuple):
    """What Python executes: a module (`flag` is "m"), code ("c"), or a file or directory ("").

    `value` is in the word at `position`; `options` words stand before it, or before its flag.
    """

    flag: str
    value: str
    position: int
    options: int


def python_target(argv: Sequence[str]) -> PythonTarget | None:
    """Return what Python executes by `argv`, started directly or by another program; None without Python."""
    words = iter(enumerate(argv))
    for _, word in words:
        if _PYTHON.fullmatch(os.path.basename(word)):
            break

    for at, word in words:
        if not word.startswith("-") or word == "-":
            return PythonTarget("", word, at, at)

        if word in _OPTIONS_WITH_VALUE:
            next(words, None)
            continue

        flag = _FLAG.match(word)
        if flag is None or flag[1] in "XW":
            continue

        position = at
        value = word[flag.end() :]
        if not value:  # `-m name`, and not `-mname`
            position, value = next(words, (at, ""))

        return PythonTarget(flag[1], value, position, at) if value else None

    return None


class ExecutedFiles:
    """Collects the files of one connection. `problem` says why it cannot be used, "" if it can."""

    def __init__(self, workspace: str) -> None:
        self.workspace = workspace
        self.problem = ""
        self._names: dict[str, None] = {}

    def names(self) -> tuple[str, ...]:
        """Return the absolute names, without duplicates."""
        return tuple(self._names)

    def add(self, path: str) -> None:
        """Add a file or a directory, and the targets of its links.

        A link in the workspace is a problem: a program can replace it.
        """
        folder, name = os.path.split(os.path.abspath(path))
        place = os.path.join(os.path.realpath(folder), name)
        real = os.path.realpath(place)

        if is_below(self.workspace, real):
            self._refuse(f"it executes {path!r}, which holds the workspace, whose files the agent may change")

        for _ in range(_MOST_LINKS):
            self._names[place] = None
            if not os.path.islink(place):
                return

            if is_below(place, self.workspace) and not self._is_covered(place):
                self._refuse(f"{place!r} is a symbolic link in the workspace: name the file that it leads to")

            target = os.path.join(os.path.dirname(place), os.readlink(place))
            place = os.path.join(os.path.realpath(os.path.dirname(target)), os.path.basename(target))

    def add_command(self, command: str) -> None:
        """Add a program, and the virtual environment that it belongs to."""
        environment = os.path.dirname(os.path.dirname(command))
        if is_below(environment, self.workspace) and os.path.isfile(os.path.join(environment, "pyvenv.cfg")):
            self.add(environment)

        self.add(command)

    def add_folders(self, variable: str, folders: Iterable[str]) -> None:
        """Add the directories of a variable in `SEARCH_VARIABLES`."""
        for folder in folders:
            if is_below(self.workspace, os.path.realpath(folder)):
                self._refuse(f"{variable} names the workspace, whose files the agent may change: name another folder")
            elif is_below(os.path.realpath(folder), self.workspace):
                self.add(folder)

    def add_names_in(self, text: str) -> None:
        """Add the files of the workspace whose absolute names occur in a text, such as a shell's command."""
        for word in _words(text):
            for part in (word, *_SEPARATORS.split(word)):
                if os.path.isabs(part) and is_below(os.path.realpath(part), self.workspace) and os.path.isfile(part):
                    self.add(part)

    def refuse_folders_in(self, argument: str, program: str, before: str = "") -> None:
        """Refuse the directories of the workspace whose absolute names occur in an argument, such as `--prefix=/name`.

        Programs such as `make -C` execute what they find there, and the agent may change it. A directory that is data
        for a server, as in `npx server-filesystem .`, is allowed: `before` is the argument before this one.
        """
        names_project = not _PROJECT_OPTIONS.isdisjoint({before, argument.partition("=")[0], argument[:2]})
        if os.path.basename(program) not in _FOLDER_PROGRAMS and not names_project:
            return

        for word in _words(argument):
            parts = [word, word.partition("=")[2]]
            if word.startswith("-"):  # `-C/name`
                parts.append(word[2:])

            for part in parts:
                if os.path.isabs(part) and os.path.isdir(part) and is_below(os.path.realpath(part), self.workspace):
                    self._refuse(
                        f"its argument {argument!r} names a folder of the workspace, where the agent may change what"
                        " programs such as make, npm and uv execute: name the file that is executed, or a folder"
                        " outside of the workspace"
                    )

    def add_module(self, command: str, args: Sequence[str], env: Mapping[str, str]) -> None:
        """Add the package or module that `python -m` executes, if Python finds it in the workspace."""
        argv = [command, *args]
        target = python_target(argv)
        if target is None or target.flag != "m":
            return

        probe = list(argv[: target.options])
        flags = argv[target.options].partition("m")[0]
        if flags != "-":  # `-I` of `-Im`
            probe.append(flags)

        probe += ["-c", _PROBE, target.value.partition(".")[0]]
        for path in _module_paths(probe, env):
            if is_below(os.path.realpath(path), self.workspace):
                self.add(path)

    def safe_path(self, path: str) -> str:
        """Return the absolute directories of PATH in which the agent can change no file."""
        return os.pathsep.join(part for part in path.split(os.pathsep) if os.path.isabs(part) and self._is_safe(part))

    def _is_safe(self, folder: str) -> bool:
        real = os.path.realpath(folder)
        return not is_below(real, self.workspace) or self._is_covered(real)

    def _is_covered(self, place: str) -> bool:
        return any(is_below(place, name) for name in self._names if name != place)

    def _refuse(self, problem: str) -> None:
        self.problem = self.problem or problem


_FOLDER_PROGRAMS: Final = frozenset(
    {"bash", "bun", "cargo", "deno", "go", "gradle", "just", "make", "mvn", "node", "npm", "pnpm", "sh", "task", "yarn"}
)
"""Programs that execute the files of a directory that an argument names."""

_PROJECT_OPTIONS: Final = frozenset({"-C", "--chdir", "--cwd", "--dir", "--directory", "--prefix", "--project"})
"""Options of other programs, such as `uv` and `npx`, that name the directory whose files they execute."""


def _words(text: str) -> list[str]:
    words = [text, *text.split()]
    with suppress(ValueError):
        words += shlex.split(text)

    return words


def _module_paths(probe: Sequence[str], env: Mapping[str, str]) -> list[str]:
    """Return the files and directories of a module; nothing if Python does not find it in time."""
    with TemporaryDirectory(prefix="mendgraph-mcp-") as folder:
        result = run_process(
            probe, cwd=folder, timeout_s=PROBE_S, max_output_bytes=_PROBE_BYTES, env={**env, "PYTHONSAFEPATH": "1"}
        )

    if not isinstance(result, ProcessResult):
        return []

    try:
        paths = json.loads(result.stdout.decode(errors="replace").splitlines()[-1])
    except (ValueError, IndexError):
        return []

    if not isinstance(paths, list):
        return []

    return [path for path in paths if isinstance(path, str) and os.path.isabs(path)]
