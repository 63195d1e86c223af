"""Which files the connection of an MCP server executes, so that the agent is kept from changing them."""

import json
import os
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from tempfile import TemporaryDirectory
from typing import Final, NamedTuple

from mendgraph.nodes.execute_tools.processes.processes import ProcessResult, run_process

SEARCH_VARIABLES: Final = frozenset(
    {"PATH", "PYTHONPATH", "NODE_PATH", "PERL5LIB", "RUBYLIB", "CLASSPATH", "LD_LIBRARY_PATH"}
)
"""Variables that list the directories in which programs and libraries are looked for."""

PROBE_S: Final = 10.0
"""Seconds in which Python has to say where a module lies."""

_PROBE_BYTES: Final = 65_536
_PROBE: Final = """
import importlib.util, json, sys
spec = importlib.util.find_spec(sys.argv[1])
print(json.dumps([spec.origin, *(spec.submodule_search_locations or ())] if spec else []))
"""
_PYTHON: Final = re.compile(r"(?:python|pypy)[\d.]*")
_FLAGS: Final = re.compile(r"-[A-Za-z]+")
_SEPARATORS: Final = re.compile(r"[=:,;]")
_MOST_LINKS: Final = 40
"""Links that lead to one another. Source: Linux follows 40."""


class PythonTarget(NamedTuple):
    """What a command line gives to Python.

    `script` is the place of the script or of the module's name, `module` the name after `-m`, `options` how many words
    come before it, and `literals` the places of words that name no file.
    """

    script: int
    module: str
    options: int
    literals: frozenset[int]


def python_target(argv: Sequence[str]) -> PythonTarget | None:
    """What `argv` gives to Python, be it started directly or by another program; None where there is no Python."""
    program = next((at for at, word in enumerate(argv) if _PYTHON.fullmatch(os.path.basename(word))), None)
    if program is None:
        return None

    at = program + 1
    while at < len(argv):
        word = argv[at]
        if not word.startswith("-") or word == "-":
            return PythonTarget(at, "", at, frozenset())

        if word == "--check-hash-based-pycs" or word in {"-X", "-W"}:
            at += 2
            continue

        flag = None
        if _FLAGS.match(word) and not word.startswith("--"):
            flag = re.search("[mcXW]", word)

        if flag is not None and flag[0] in "mc":
            return _inline_target(argv, at, flag)

        at += 1

    return None


def _inline_target(argv: Sequence[str], at: int, flag: re.Match[str]) -> PythonTarget | None:
    """The target of `-m name`, `-mname`, `-Im name`; of `-c` only that its text names no file."""
    remaining = argv[at][flag.end() :]
    place = at if remaining else at + 1
    if place >= len(argv):
        return None

    module = (remaining or argv[place]) if flag[0] == "m" else "-"
    return PythonTarget(place, module, at, frozenset({place}))


def is_inside(path: str, folder: str) -> bool:
    """Whether an absolute path is this directory or lies below it."""
    return path == folder or path.startswith(folder.rstrip("/") + "/")


@dataclass
class ExecutedFiles:
    """Collects the files of one connection. `problem` says why it cannot be used; "" where it can."""

    workspace: str
    problem: str = ""

    def __post_init__(self) -> None:
        self._names: dict[str, None] = {}

    def found(self) -> tuple[str, ...]:
        """The absolute names, each once."""
        return tuple(self._names)

    def add(self, path: str) -> None:
        """A file or a directory under the name that is used, and where its links lead.

        A link in the workspace is a problem: a program can put another one in its place.
        """
        folder, name = os.path.split(os.path.abspath(path))
        place = os.path.join(os.path.realpath(folder), name)
        real = os.path.realpath(place)

        if is_inside(self.workspace, real):
            self._refuse(f"it executes {path!r}, which holds the workspace, whose files the agent may change")

        for _ in range(_MOST_LINKS):
            self._names[place] = None
            if not os.path.islink(place):
                return

            if is_inside(place, self.workspace) and not self._is_covered(place):
                self._refuse(f"{place!r} is a symbolic link in the workspace: name the file that it leads to")

            target = os.path.join(os.path.dirname(place), os.readlink(place))
            place = os.path.join(os.path.realpath(os.path.dirname(target)), os.path.basename(target))

    def add_command(self, command: str) -> None:
        """A program, and the whole virtual environment that it belongs to."""
        environment = os.path.dirname(os.path.dirname(command))
        if is_inside(environment, self.workspace) and os.path.isfile(os.path.join(environment, "pyvenv.cfg")):
            self.add(environment)

        self.add(command)

    def add_folders(self, variable: str, folders: Iterable[str]) -> None:
        """The directories of a variable that programs and libraries are looked for in."""
        for folder in folders:
            if is_inside(self.workspace, os.path.realpath(folder)):
                self._refuse(f"{variable} names the workspace, whose files the agent may change: name another folder")
            elif is_inside(os.path.realpath(folder), self.workspace):
                self.add(folder)

    def add_names_in(self, text: str) -> None:
        """The files of the workspace whose absolute names stand in a text, such as a shell's command."""
        words = [text, *text.split()]
        with suppress(ValueError):
            words += shlex.split(text)

        for word in dict.fromkeys(part for word_part in words for part in (word_part, *_SEPARATORS.split(word_part))):
            if os.path.isabs(word) and is_inside(os.path.realpath(word), self.workspace) and os.path.isfile(word):
                self.add(word)

    def add_module(self, command: str, args: Sequence[str], env: Mapping[str, str]) -> None:
        """The package or module that `python -m` runs, where Python finds it in the workspace."""
        argv = [command, *args]
        target = python_target(argv)
        if target is None or target.module in {"", "-"}:
            return

        flags = re.match("-[A-Za-z]*?(?=m)", argv[target.options])
        if flags is not None and len(flags[0]) > 1:
            kept_flags = [flags[0]]
        else:
            kept_flags = []

        probe = [*argv[: target.options], *kept_flags, "-c", _PROBE, target.module.partition(".")[0]]
        for place in _places_of_module(probe, env):
            if is_inside(os.path.realpath(place), self.workspace):
                self.add(place)

    def safe_path(self, path: str) -> str:
        """The absolute directories of PATH in which the agent can change nothing."""
        return os.pathsep.join(part for part in path.split(os.pathsep) if os.path.isabs(part) and self._is_safe(part))

    def _is_safe(self, folder: str) -> bool:
        real = os.path.realpath(folder)
        return not is_inside(real, self.workspace) or self._is_covered(real)

    def _is_covered(self, place: str) -> bool:
        return any(is_inside(place, name) for name in self._names if name != place)

    def _refuse(self, problem: str) -> None:
        self.problem = self.problem or problem


def _places_of_module(probe: Sequence[str], env: Mapping[str, str]) -> list[str]:
    """Where Python finds a module; nothing where it does not say so in time."""
    with TemporaryDirectory(prefix="mendgraph-mcp-") as folder:
        result = run_process(
            probe, cwd=folder, timeout_s=PROBE_S, max_output_bytes=_PROBE_BYTES, env={**env, "PYTHONSAFEPATH": "1"}
        )

    if isinstance(result, ProcessResult):
        lines = result.stdout.decode(errors="replace").splitlines()
    else:
        lines = []

    try:
        places = json.loads(lines[-1]) if lines else []
    except ValueError:
        return []

    if not isinstance(places, list):
        return []

    return [place for place in places if isinstance(place, str) and os.path.isabs(place)]
