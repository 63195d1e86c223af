"""The programs that run a project's tests, found by its files without running anything.

The interpreter of an environment is used directly. The sandbox shows folders outside of the workspace only if they
belong to a known tool or to a program of the user's PATH: no file of the workspace can name another one.
"""

import base64
import glob
import hashlib
import json
import os
import posixpath
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import chain, islice
from typing import Final, NamedTuple

from mendgraph.nodes.execute_tools.commands.command_rules import CommandRules, may_be_readable
from mendgraph.nodes.execute_tools.commands.copied_project import original_project
from mendgraph.nodes.workspace.files.change_records import folders_above
from mendgraph.nodes.workspace.files.handles import (
    beginning_if_readable,
    closing,
    list_names,
    open_directory,
    open_root,
)
from mendgraph.nodes.workspace.files.sandbox import is_below
from mendgraph.nodes.workspace.files.tree_walk import VIRTUAL_ENVIRONMENTS
from mendgraph.nodes.workspace.processes.git import enclosing_repository
from mendgraph.nodes.workspace.sandboxes.backends import CONTAINER

LOOKED_FOR: Final = (
    "pytest in .venv, venv, .tox, .nox and the environments of poetry, pdm, hatch and $VIRTUAL_ENV; Django's"
    " manage.py; a test script in package.json; Cargo.toml; go.mod; a target test in Makefile"
)
_ELSEWHERE: Final = (
    "{cache}/pypoetry/virtualenvs/*-{sha256}-py*",
    "{data}/pdm/venvs/*-{md5}-*",
    "{data}/hatch/env/virtual/*/{sha256}/*",
    "{data}/hatch/env/.internal/hatch-test*/*/{sha256}/*",
)
"""The environments of poetry, pdm and hatch, with a hash of the project's folder in their names."""
_INSTALLATIONS: Final = (
    "{home}/.pyenv/versions",
    "{data}/uv/python",
    "{data}/pdm/python",
    "{data}/hatch/pythons",
    "/opt",
)
"""Folders with interpreters that environments use."""
_NODE: Final = {"node": ("bin", "lib/node_modules")}
_NEEDS: Final[Mapping[str, Mapping[str, tuple[str, ...]]]] = {
    "npm": _NODE,
    "pnpm": _NODE,
    "yarn": _NODE,
    "cargo": {"CARGO_HOME": ("bin", "registry", "git"), "RUSTUP_HOME": ("",)},
    "go": {"GOPATH": ("pkg/mod",), "go": ("bin", "src", "pkg", "lib")},
    "make": {},
}
"""The folders that a program needs, below one of `_HOMES` or below the installation of a program."""
_HOMES: Final = {"CARGO_HOME": ".cargo", "RUSTUP_HOME": ".rustup", "GOPATH": "go"}
"""The folders of tools: a variable of the user's environment, and the usual name in the home."""
PROGRAMS: Final = tuple(_NEEDS)
_LOCK_FILES: Final = {"pnpm-lock.yaml": "pnpm", "yarn.lock": "yarn", "package.json": "npm"}
_DJANGO: Final = "manage.py"
_NO_TEST: Final = "no test specified"  # what `npm init` writes
_SCRIPTS: Final = (".js", ".jsx", ".mjs", ".cjs", ".ts", ".tsx", ".mts", ".cts", ".vue", ".svelte")
_OTHERS: Final = (".c", ".cc", ".cpp", ".cxx", ".h", ".hpp", ".sh", ".rb", ".php", ".pl", ".lua", ".java")
_PYTHON_PROJECT: Final = frozenset({"pyproject.toml", "setup.py", _DJANGO, *VIRTUAL_ENVIRONMENTS})
"""The files and folders of a folder from which Python's tests are run."""
_PROJECT_FILES: Final = frozenset({*_PYTHON_PROJECT, "package.json", "Cargo.toml", "go.mod"})
_NOT_PROJECTS: Final = frozenset({"node_modules", *VIRTUAL_ENVIRONMENTS})
_DEEPEST: Final = 2  # levels of folders below the workspace in which projects are looked for
_MOST_FOLDERS: Final = 300  # folders that are looked at
_MOST_PROJECTS: Final = 20  # projects in folders whose programs commands can start
_MAKE_TEST: Final = re.compile(rb"^test[ \t]*:(?!=)", re.MULTILINE)
_BUILT_ON: Final = re.compile(rb"^home[ \t]*=[ \t]*([^\s\0]+)$", re.MULTILINE)


class Command(NamedTuple):
    """The command that runs all tests for files with these suffixes, in a folder of the workspace.

    `lacks` is what is not installed. `is_python`: the project's own Python runs it, in place of single test files.
    """

    line: str
    suffixes: tuple[str, ...]
    lacks: str = ""
    is_python: bool = False
    folder: str = ""

    def covers(self, path: str) -> bool:
        """Return whether the command is for this file of the workspace."""
        is_in_folder = not self.folder or path.startswith(f"{self.folder}/")
        return is_in_folder and path.endswith(self.suffixes)

    @property
    def name(self) -> str:
        """The command line, with its folder."""
        return f"{self.line} in {self.folder}" if self.folder else self.line

    @property
    def summary(self) -> str:
        """The name, with what the command lacks."""
        return f"{self.name} (without {self.lacks})" if self.lacks else self.name


class Runners(NamedTuple):
    """The test runners of a project in the workspace.

    Attributes:
        pythons: interpreters to try, the best first; that of the activated environment is the last of all.
        pytest_pythons: the same to run pytest, first those that have it.
        pytest: the environment that has pytest, or "".
        commands: the commands that run all tests.
        readable: the folders outside of the workspace that these need.
        env: their environment variables.
        folder: the folder of the workspace in which single Python tests run, "" for the workspace.
    """

    pythons: tuple[str, ...] = ()
    pytest_pythons: tuple[str, ...] = ()
    pytest: str = ""
    commands: tuple[Command, ...] = ()
    readable: tuple[str, ...] = ()
    env: Mapping[str, str] = {}
    folder: str = ""

    @property
    def summary(self) -> str:
        """The test runners as a list for a person, or ""."""
        parts: list[str] = []
        if self.pytest:
            parts.append(f"pytest in {self.pytest}")

        parts += [command.summary for command in self.commands]
        return "; ".join(parts)


def find_runners(root: str, folder: str = "") -> Runners:
    """Return the test runners for the files in a folder of the workspace `root`, or none if it cannot be read.

    `root` is a path without links. The nearest runner counts: one in the folder, or else in a folder above it.
    """
    home = os.path.expanduser("~")
    with suppress(OSError), closing(open_root(root)) as handle:
        folders = with_parents(folder)
        of_project = _with_pytest_first(_of_project(handle, root, folders, home))
        environments = [*of_project, *_activated(root, home)]
        for_pytest = _with_pytest_first(environments)
        path = _outer_path(root)
        commands = _nearest_commands(handle, folders, path, environments)

        pytest = ""
        if for_pytest and for_pytest[0].has_pytest:
            pytest = for_pytest[0].name.removeprefix(f"{root}/")

        return Runners(
            pythons=_pythons(root, environments),
            pytest_pythons=_pythons(root, for_pytest),
            pytest=pytest,
            commands=commands,
            readable=_readable(root, folders, environments, commands, path),
            env=_offline(home),
            folder=next((name for name in folders if _is_python_project(handle, name)), ""),
        )

    return Runners()


def find_all_runners(root: str) -> list[Runners]:
    """Return the test runners of the workspace, and of the first projects in folders of it."""
    folders = [""]
    with suppress(OSError), closing(open_root(root)) as handle:
        folders += islice(_project_folders(handle), _MOST_PROJECTS)

    return [find_runners(root, folder) for folder in folders]


def with_parents(folder: str) -> list[str]:
    """Return a relative folder and all folders above it, the nearest first; the last is "", the workspace."""
    if not folder:
        return [""]

    return [folder, *reversed(folders_above(folder)), ""]


def _project_folders(root_fd: int) -> Iterator[str]:
    """Yield the folders of projects below the workspace, down to `_DEEPEST`."""
    pending = [""]
    looked_at = 0

    while pending and looked_at < _MOST_FOLDERS:
        folder = pending.pop(0)
        looked_at += 1
        names = list_names(root_fd, *_parts(folder))

        if folder and not _PROJECT_FILES.isdisjoint(names):
            yield folder

        if folder.count("/") + bool(folder) < _DEEPEST:
            below = [name for name in names if "." not in name and name not in _NOT_PROJECTS]
            pending += [posixpath.join(folder, name) for name in below]


def rules_with_runners(rules: CommandRules, root: str) -> CommandRules:
    """Return the rules for commands that can start and read what the checks of the workspace `root` can.

    A variable with a folder is left out if no command sees this folder, and those that turn the network off are left
    out where there may be one.
    """
    projects = find_all_runners(os.path.realpath(root))
    pythons = dict.fromkeys(chain.from_iterable(runners.pythons for runners in projects))
    readable = dict.fromkeys(chain.from_iterable(runners.readable for runners in projects))
    folders = tuple(filter(may_be_readable, readable))

    def is_usable(value: str) -> bool:
        if os.path.isabs(value):
            return any(is_below(folder, value) for folder in folders)
        return rules.sandbox != CONTAINER

    variables = tuple((name, value) for name, value in projects[0].env.items() if is_usable(value))
    return replace(rules, readable=(*rules.readable, *folders), pythons=tuple(pythons), variables=variables)


def _with_pytest_first(environments: "Iterable[_Environment]") -> "list[_Environment]":
    return sorted(environments, key=lambda environment: not environment.has_pytest)


def _pythons(root: str, environments: "Sequence[_Environment]") -> tuple[str, ...]:
    # The usual ones are tried in any case: they may be links to what `readable` shows.
    folders = [*(environment.name for environment in environments), f"{root}/.venv", f"{root}/venv"]
    return tuple(f"{folder}/bin/python" for folder in dict.fromkeys(folders))


def _readable(
    root: str, projects: Sequence[str], environments: "Sequence[_Environment]", commands: Sequence[Command], path: str
) -> tuple[str, ...]:
    """Return the folders outside of the workspace that the environments and commands need."""
    home = os.path.expanduser("~")
    folders = [environment.name for environment in environments if not environment.name.startswith(f"{root}/")]

    installations = [environment.built_on for environment in environments]
    folders += [folder for folder in installations if _is_installation(folder, home)]
    programs = [command.line.partition(" ")[0] for command in commands if not command.is_python]
    if any(os.path.isdir(os.path.join(root, project, "node_modules")) for project in projects):
        programs.append("npm")

    for program in programs:
        folders += _needs(program, home, path)

    return tuple(dict.fromkeys(os.path.realpath(folder) for folder in folders if os.path.isdir(folder)))


def _offline(home: str) -> dict[str, str]:
    """Return environment variables that make package managers use their caches and no network."""
    return {
        **{variable: _home_of_tool(variable, home) for variable in _HOMES},
        "npm_config_update_notifier": "false",
        "GOPROXY": "off",
        "GOTOOLCHAIN": "local",
        "CARGO_NET_OFFLINE": "true",
    }


def _home_of_tool(variable: str, home: str) -> str:
    """Return the real name of a tool's folder, which never holds the user's home."""
    for folder in os.environ.get(variable, "").split(":"):
        real = os.path.realpath(folder)
        if os.path.isabs(folder) and not f"{os.path.realpath(home)}/".startswith(f"{real.rstrip('/')}/"):
            return real

    return os.path.realpath(f"{home}/{_HOMES[variable]}")


class _Environment(NamedTuple):
    name: str
    built_on: str
    has_pytest: bool
    has_django_plugin: bool


def _read(folder_fd: int, name: str) -> _Environment:
    base = _BUILT_ON.search(beginning_if_readable(folder_fd, "pyvenv.cfg"))
    built_on = "/"
    if base is not None:
        built_on = os.path.realpath(f"{os.fsdecode(base[1])}/..")

    packages: set[str] = set()
    for library in list_names(folder_fd, "lib"):
        packages.update(list_names(folder_fd, "lib", library, "site-packages"))

    return _Environment(name, built_on, "pytest" in packages, "pytest_django" in packages)


def _of_project(root_fd: int, root: str, folders: Sequence[str], home: str) -> "Iterator[_Environment]":
    """Yield the environments for these folders of the workspace, and for those above it in its repository."""
    for folder in folders:
        yield from _inside(root_fd, root, folder)

    for folder in folders:
        yield from _of_tools(os.path.normpath(os.path.join(root, folder)), home)

    repository = enclosing_repository(root)
    if repository is not None:
        above = with_parents(posixpath.dirname(root.removeprefix(f"{repository}/")))
        yield from _of_other(repository, above, home)

    original = original_project(root)
    if original is not None and os.path.isdir(original):
        yield from _of_other(original, folders, home)


def _of_other(project: str, folders: Sequence[str], home: str) -> "Iterator[_Environment]":
    """Yield the environments for these folders of a project that is not the workspace."""
    with closing(open_root(project)) as handle:
        for folder in folders:
            yield from _inside(handle, project, folder)

    for folder in folders:
        yield from _of_tools(os.path.normpath(os.path.join(project, folder)), home)


def _inside(root_fd: int, root: str, project: str) -> Iterator[_Environment]:
    """Yield the environments in the folder of a project."""
    parts = _parts(project)
    places: list[tuple[str, ...]] = [(name,) for name in VIRTUAL_ENVIRONMENTS]
    places += [(tool, name) for tool in (".tox", ".nox") for name in list_names(root_fd, *parts, tool)]

    for place in places:
        if "python" in list_names(root_fd, *parts, *place, "bin"):
            with closing(open_directory(root_fd, (*parts, *place))) as folder:
                yield _read(folder, "/".join((root, *parts, *place)))


def _parts(folder: str) -> tuple[str, ...]:
    return tuple(folder.split("/")) if folder else ()


def _of_tools(root: str, home: str) -> Iterator[_Environment]:
    """Yield the environments that tools keep elsewhere for this folder."""
    hashes: dict[str, str] = {}
    for name in ("sha256", "md5"):
        digest = hashlib.new(name, os.fsencode(root), usedforsecurity=False).digest()
        hashes[f"{{{name}}}"] = base64.urlsafe_b64encode(digest).decode()[:8]

    folders: list[str] = []
    for pattern in _ELSEWHERE:
        place = _place(pattern, home)
        for name, text in hashes.items():
            place = place.replace(name, text)

        folders += sorted(glob.glob(place))

    yield from _elsewhere(folders, root, home)


def _activated(root: str, home: str) -> Iterator[_Environment]:
    return _elsewhere([os.environ.get("VIRTUAL_ENV") or os.devnull], root, home)


def _elsewhere(folders: Sequence[str], root: str, home: str) -> Iterator[_Environment]:
    """Yield the environments at these places, without those that lie in the workspace or hold it."""
    for folder in folders:
        real = os.path.realpath(folder)
        holds_root = f"{root}/".startswith(f"{real}/") or f"{home}/".startswith(f"{real}/")
        if not holds_root and not real.startswith(f"{root}/") and os.path.isfile(f"{real}/pyvenv.cfg"):
            with closing(open_root(real)) as handle:
                yield _read(handle, real)


def _is_installation(prefix: str, home: str) -> bool:
    """Return whether a Python is installed at `prefix`, in one of the folders for interpreters."""
    if f"{os.path.realpath(home)}/".startswith(f"{prefix}/"):
        return False

    for folder in _INSTALLATIONS:
        if prefix.startswith(f"{os.path.realpath(_place(folder, home))}/"):
            return bool(glob.glob(f"{glob.escape(prefix)}/lib/python3*/os.py"))

    return False


def _place(pattern: str, home: str) -> str:
    data = os.environ.get("XDG_DATA_HOME") or f"{home}/.local/share"
    cache = os.environ.get("XDG_CACHE_HOME") or f"{home}/.cache"
    return pattern.replace("{data}", data).replace("{cache}", cache).replace("{home}", home)


def _outer_path(root: str) -> str:
    """Return PATH without folders of the workspace: a link there could name any folder."""
    folders = [folder for folder in os.get_exec_path() if os.path.isabs(folder)]
    return ":".join(folder for folder in folders if not f"{os.path.realpath(folder)}/".startswith(f"{root}/"))


def _needs(program: str, home: str, path: str) -> Iterator[str]:
    for name, parts in _NEEDS[program].items():
        if name in _HOMES:
            folder = _home_of_tool(name, home)
        else:
            executable = os.path.realpath(shutil.which(name, path=path) or "/")
            folder = os.path.dirname(os.path.dirname(executable)).rstrip("/")

        if folder:
            yield from (os.path.join(folder, part) for part in parts)


def _nearest_commands(
    root_fd: int, folders: Sequence[str], path: str, environments: "Sequence[_Environment]"
) -> tuple[Command, ...]:
    """Return the commands of these folders, the nearest first, without those for files that a nearer one is for."""
    has_django_plugin = any(environment.has_django_plugin for environment in environments)
    nearest: list[Command] = []
    suffixes: set[str] = set()

    for folder in folders:
        commands = list(_commands(root_fd, folder, path))
        is_django = b"django" in beginning_if_readable(root_fd, *_parts(folder), _DJANGO)
        if is_django and not has_django_plugin:
            commands.insert(0, Command(f"python {_DJANGO} test", (".py",), is_python=True, folder=folder))

        nearest += [command for command in commands if suffixes.isdisjoint(command.suffixes)]
        for command in commands:
            suffixes.update(command.suffixes)

    return tuple(nearest)


def _commands(root_fd: int, folder: str, path: str) -> Iterator[Command]:
    """Yield the commands of one folder; the lock file and the packages may be in a folder above it."""
    parts = _parts(folder)
    names = list_names(root_fd, *parts)
    command = partial(_command, path, folder)

    with suppress(ValueError, AttributeError, RecursionError):  # not a valid package.json
        package = json.loads(beginning_if_readable(root_fd, *parts, "package.json"))
        script = str(package.get("scripts", {}).get("test") or "")

        if script and _NO_TEST not in script:
            above = [name for parent in with_parents(folder) for name in list_names(root_fd, *_parts(parent))]
            tool = next(tool for name, tool in _LOCK_FILES.items() if name in above)
            needs = package.get("dependencies") or package.get("devDependencies")
            lacks = "node_modules" if needs and "node_modules" not in above else ""
            yield command(f"{tool} test", _SCRIPTS, lacks)

    if "Cargo.toml" in names:
        yield command("cargo test", (".rs",))

    if "go.mod" in names:
        yield command("go test ./...", (".go",))

    if _MAKE_TEST.search(beginning_if_readable(root_fd, *parts, "Makefile")):
        yield command("make test", _OTHERS)


def _command(path: str, folder: str, line: str, suffixes: tuple[str, ...], lacks: str = "") -> Command:
    program = line.partition(" ")[0]
    return Command(line, suffixes, lacks if shutil.which(program, path=path) else program, folder=folder)


def _is_python_project(root_fd: int, folder: str) -> bool:
    return not _PYTHON_PROJECT.isdisjoint(list_names(root_fd, *_parts(folder)))
