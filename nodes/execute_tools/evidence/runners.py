"""The programs that run a project's tests, found by its files without running anything.

The interpreter of an environment is used directly. The sandbox shows folders outside of the workspace only if they
belong to a known tool or to a program of the user's PATH: no file of the workspace can name another one.
"""

import base64
import glob
import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Final, NamedTuple

from mendgraph.nodes.execute_tools.commands.command_rules import CommandRules, may_be_readable
from mendgraph.nodes.execute_tools.commands.copied_project import original_project
from mendgraph.nodes.workspace.files.handles import (
    beginning_if_readable,
    closing,
    list_names,
    open_directory,
    open_root,
)
from mendgraph.nodes.workspace.files.sandbox import is_below
from mendgraph.nodes.workspace.files.tree_walk import VIRTUAL_ENVIRONMENTS
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
_MAKE_TEST: Final = re.compile(rb"^test[ \t]*:(?!=)", re.MULTILINE)
_BUILT_ON: Final = re.compile(rb"^home[ \t]*=[ \t]*([^\s\0]+)$", re.MULTILINE)


class Command(NamedTuple):
    """The command that runs all tests for files with these suffixes; `lacks` is what is not installed.

    `is_python`: the project's own Python runs it, in place of single test files.
    """

    name: str
    suffixes: tuple[str, ...]
    lacks: str = ""
    is_python: bool = False

    @property
    def summary(self) -> str:
        """The command, with what it lacks."""
        return f"{self.name} (without {self.lacks})" if self.lacks else self.name


class Runners(NamedTuple):
    """The test runners of a workspace.

    Attributes:
        pythons: interpreters to try, the best first; that of the activated environment is the last of all.
        pytest_pythons: the same to run pytest, first those that have it.
        pytest: the environment that has pytest, or "".
        commands: the commands that run all tests.
        readable: the folders outside of the workspace that these need.
        env: their environment variables.
    """

    pythons: tuple[str, ...] = ()
    pytest_pythons: tuple[str, ...] = ()
    pytest: str = ""
    commands: tuple[Command, ...] = ()
    readable: tuple[str, ...] = ()
    env: Mapping[str, str] = {}

    @property
    def summary(self) -> str:
        """The test runners as a list for a person, or ""."""
        parts: list[str] = []
        if self.pytest:
            parts.append(f"pytest in {self.pytest}")

        parts += [command.summary for command in self.commands]
        return "; ".join(parts)


def find_runners(root: str) -> Runners:
    """Return the test runners of the workspace `root` (a path without links), or none if it cannot be read."""
    home = os.path.expanduser("~")
    with suppress(OSError), closing(open_root(root)) as handle:
        environments = [*_inside(handle, root), *_of_original(root, home), *_of_tools(root, home)]
        environments = [*_with_pytest_first(environments), *_activated(root, home)]
        for_pytest = _with_pytest_first(environments)
        path = _outer_path(root)
        commands = tuple(_commands(handle, path))
        has_django_plugin = any(environment.has_django_plugin for environment in environments)
        if b"django" in beginning_if_readable(handle, _DJANGO) and not has_django_plugin:
            commands = (Command(f"python {_DJANGO} test", (".py",), is_python=True), *commands)

        pytest = ""
        if for_pytest and for_pytest[0].has_pytest:
            pytest = for_pytest[0].name.removeprefix(f"{root}/")

        pythons = (_pythons(root, environments), _pythons(root, for_pytest))
        return Runners(*pythons, pytest, commands, _readable(root, environments, commands, path), _offline(home))

    return Runners()


def rules_with_runners(rules: CommandRules, root: str) -> CommandRules:
    """Return the rules for commands that can start and read what the checks of the workspace `root` can.

    A variable with a folder is left out if no command sees this folder, and those that turn the network off are left
    out where there may be one.
    """
    runners = find_runners(os.path.realpath(root))
    folders = tuple(filter(may_be_readable, runners.readable))

    def is_usable(value: str) -> bool:
        if os.path.isabs(value):
            return any(is_below(folder, value) for folder in folders)
        return rules.sandbox != CONTAINER

    variables = tuple((name, value) for name, value in runners.env.items() if is_usable(value))
    return replace(rules, readable=(*rules.readable, *folders), pythons=runners.pythons, variables=variables)


def _with_pytest_first(environments: "Sequence[_Environment]") -> "list[_Environment]":
    return sorted(environments, key=lambda environment: not environment.has_pytest)


def _pythons(root: str, environments: "Sequence[_Environment]") -> tuple[str, ...]:
    # The usual ones are tried in any case: they may be links to what `readable` shows.
    folders = [*(environment.name for environment in environments), f"{root}/.venv", f"{root}/venv"]
    return tuple(f"{folder}/bin/python" for folder in dict.fromkeys(folders))


def _readable(
    root: str, environments: "Sequence[_Environment]", commands: Sequence[Command], path: str
) -> tuple[str, ...]:
    """Return the folders outside of the workspace that the environments and commands need."""
    home = os.path.expanduser("~")
    folders = [environment.name for environment in environments if not environment.name.startswith(f"{root}/")]

    installations = [environment.built_on for environment in environments]
    folders += [folder for folder in installations if _is_installation(folder, home)]
    programs = [command.name.partition(" ")[0] for command in commands if not command.is_python]
    if os.path.isdir(f"{root}/node_modules"):
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


def _inside(root_fd: int, root: str) -> Iterator[_Environment]:
    sessions = [(tool, name) for tool in (".tox", ".nox") for name in list_names(root_fd, tool)]
    for parts in [*((name,) for name in VIRTUAL_ENVIRONMENTS), *sessions]:
        if "python" in list_names(root_fd, *parts, "bin"):
            with closing(open_directory(root_fd, parts)) as folder:
                yield _read(folder, "/".join((root, *parts)))


def _of_original(root: str, home: str) -> Iterator[_Environment]:
    """Yield the environments of the project of which the workspace is a copy."""
    project = original_project(root)
    if project is not None and os.path.isdir(project):
        with closing(open_root(project)) as handle:
            yield from _inside(handle, project)

        yield from _of_tools(project, home)


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


def _commands(root_fd: int, path: str) -> Iterator[Command]:
    names = list_names(root_fd)
    command = partial(_command, path)

    with suppress(ValueError, AttributeError, RecursionError):  # not a valid package.json
        package = json.loads(beginning_if_readable(root_fd, "package.json"))
        script = str(package.get("scripts", {}).get("test") or "")

        if script and _NO_TEST not in script:
            tool = next(tool for name, tool in _LOCK_FILES.items() if name in names)
            needs = package.get("dependencies") or package.get("devDependencies")
            lacks = "node_modules" if needs and "node_modules" not in names else ""
            yield command(f"{tool} test", _SCRIPTS, lacks)

    if "Cargo.toml" in names:
        yield command("cargo test", (".rs",))

    if "go.mod" in names:
        yield command("go test ./...", (".go",))

    if _MAKE_TEST.search(beginning_if_readable(root_fd, "Makefile")):
        yield command("make test", _OTHERS)


def _command(path: str, name: str, suffixes: tuple[str, ...], lacks: str = "") -> Command:
    program = name.partition(" ")[0]
    return Command(name, suffixes, lacks if shutil.which(program, path=path) else program)
