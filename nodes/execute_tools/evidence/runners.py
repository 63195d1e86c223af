"""Which programs run a project's tests, as far as its files say: nothing is run to find that out.

An environment is used directly, by the interpreter in it, whichever tool keeps it. What lies outside of the workspace
is shown to the sandbox only where such a tool, or a program of the person's PATH, keeps it: no file of the workspace
can name another folder to be shown.
"""

import base64
import glob
import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from mendgraph.nodes.execute_tools.files.handles import beginning, closing, open_directory, open_root
from mendgraph.nodes.execute_tools.processes.bubblewrap import SCRATCH

LOOKED_FOR: Final = (
    "pytest in .venv, venv, .tox and the environments of poetry, pdm, hatch and $VIRTUAL_ENV; a test script in"
    " package.json; Cargo.toml; go.mod; a target test in Makefile"
)
_IN_WORKSPACE: Final = (".venv", "venv", "env", ".tox/", ".nox/", ".hatch/")  # with a "/", each folder in it
_ELSEWHERE: Final = (
    "{cache}/pypoetry/virtualenvs/*-{sha256}-py*",
    "{data}/pdm/venvs/*-{md5}-*",
    "{data}/hatch/env/virtual/*/{sha256}/*",
    "{data}/hatch/env/.internal/hatch-test*/*/{sha256}/*",
)
"""Where poetry, pdm and hatch keep the environments of a project; the hash of its folder is a part of the name."""
_INSTALLATIONS: Final = (
    "{home}/.pyenv/versions",
    "{data}/uv/python",
    "{data}/pdm/python",
    "{data}/hatch/pythons",
    "/opt",
)
"""Folders with interpreters, on which environments are built."""
_NEEDS: Final[Mapping[str, Mapping[str, tuple[str, ...]]]] = {
    "cargo": {"~": (".cargo/bin", ".cargo/registry", ".cargo/git", ".rustup")},
    "go": {"~": ("go/pkg/mod",), "go": ("bin", "src", "pkg", "lib")},
    "make": {},
}
"""Which folders a program needs, below the home or below where another one is installed; the rest is node's."""
_LOCK_FILES: Final = {"pnpm-lock.yaml": "pnpm", "yarn.lock": "yarn", "package.json": "npm"}
_NO_TEST: Final = "no test specified"  # what `npm init` writes
_SCRIPTS: Final = frozenset({".js", ".jsx", ".mjs", ".cjs", ".ts", ".tsx", ".mts", ".cts", ".vue", ".svelte"})
_COMPILED: Final = frozenset({".c", ".cc", ".cpp", ".cxx", ".h", ".hpp", ".sh", ".rb", ".php", ".pl", ".lua", ".java"})
_MAKE_TEST: Final = re.compile(rb"^test[ \t]*:(?!=)", re.MULTILINE)
_BUILT_ON: Final = re.compile(rb"^home\s*=\s*(\S+)/bin\s*$", re.MULTILINE)


class Command(NamedTuple):
    """The command that runs all tests of a project, for files with these suffixes; `lacks` is what is not there."""

    words: tuple[str, ...]
    suffixes: frozenset[str]
    lacks: str = ""

    @property
    def name(self) -> str:
        """As it is written in a terminal."""
        return " ".join(self.words)


@dataclass(frozen=True)
class Runners:
    """What was found for a workspace: interpreters to try, the best first, and commands.

    `pytest` is the environment that has it, "" for none. `readable` are the folders outside that all of them need.
    """

    pythons: tuple[str, ...] = ()
    pytest: str = ""
    commands: tuple[Command, ...] = ()
    readable: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)

    @property
    def told(self) -> str:
        """What was found, in words; "" for nothing."""
        python = [f"pytest in {self.pytest}"] if self.pytest else []
        lacking = (f"{each.name} (without {each.lacks})" if each.lacks else each.name for each in self.commands)
        return "; ".join((*python, *lacking))


def find_runners(root: str) -> Runners:
    """What runs the tests of the workspace `root`, a real name; nothing where it cannot be read."""
    home = os.path.expanduser("~")
    with suppress(OSError), closing(open_root(root)) as handle:
        found = [*_inside(handle, root), *_outside(root, home)]
        found.sort(key=lambda each: not each.has_pytest)
        commands = tuple(_commands(handle))
        shown = [folder for each in found for folder in each.needs(root, home)]
        shown += [folder for each in commands for folder in _needs(each.words[0], home)]
        return Runners(
            # The usual ones are tried in any case: they may be links to what `readable_folders` shows.
            pythons=tuple(
                f"{name}/bin/python" for name in (*(each.name for each in found), f"{root}/.venv", f"{root}/venv")
            ),
            pytest=found[0].name.removeprefix(f"{root}/") if found and found[0].has_pytest else "",
            commands=commands,
            readable=tuple(dict.fromkeys(os.path.realpath(each) for each in shown if os.path.isdir(each))),
            env=_offline(home),
        )
    return Runners()


def _offline(home: str) -> dict[str, str]:
    """What keeps the programs from fetching, and from writing into the workspace."""
    return {
        "CI": "1",
        "npm_config_update_notifier": "false",
        "CARGO_HOME": f"{home}/.cargo",
        "CARGO_NET_OFFLINE": "true",
        "CARGO_TARGET_DIR": f"{SCRATCH}/target",
        "RUSTUP_HOME": f"{home}/.rustup",
        "GOPATH": f"{home}/go",
        "GOPROXY": "off",
        "GOTOOLCHAIN": "local",
        "GOCACHE": f"{SCRATCH}/go",
    }


class _Environment(NamedTuple):
    """A Python environment by its absolute name; `built_on` is where its interpreter is installed, "" if not known."""

    name: str
    built_on: str
    has_pytest: bool

    @classmethod
    def read(cls, folder_fd: int, name: str) -> "_Environment":
        """The one in the open folder."""
        home = _BUILT_ON.search(_text(folder_fd, "pyvenv.cfg"))
        libraries = (("lib", each, "site-packages") for each in _names(folder_fd, "lib") if each.startswith("python3"))
        return cls(
            name, os.fsdecode(home[1]) if home else "", any("pytest" in _names(folder_fd, *e) for e in libraries)
        )

    def needs(self, root: str, home: str) -> Iterator[str]:
        """What its interpreter needs outside of the workspace: itself, and what it is built on."""
        if not self.name.startswith(f"{root}/"):
            yield self.name
        prefix = os.path.realpath(self.built_on or "/")
        known = any(prefix.startswith(f"{os.path.realpath(_place(each, home))}/") for each in _INSTALLATIONS)
        if known and glob.glob(f"{glob.escape(prefix)}/lib/python3*/os.py"):
            yield prefix


def _inside(root_fd: int, root: str) -> Iterator[_Environment]:
    own = os.environ.get("VIRTUAL_ENV", "").removeprefix(f"{root}/")
    for place in dict.fromkeys((*_IN_WORKSPACE, *([own] if own and not os.path.isabs(own) else ()))):
        parts = tuple(place.rstrip("/").split("/"))
        for found in [(*parts, each) for each in _names(root_fd, *parts)] if place.endswith("/") else [parts]:
            if any(each.startswith("python") for each in _names(root_fd, *found, "bin")):
                with closing(open_directory(root_fd, found)) as folder:
                    yield _Environment.read(folder, "/".join((root, *found)))


def _outside(root: str, home: str) -> Iterator[_Environment]:
    patterns = [_place(each, home) for each in _ELSEWHERE]
    for name in ("sha256", "md5"):
        digest = hashlib.new(name, os.fsencode(root), usedforsecurity=False).digest()
        patterns = [each.replace(f"{{{name}}}", base64.urlsafe_b64encode(digest).decode()[:8]) for each in patterns]
    activated = os.environ.get("VIRTUAL_ENV", "")
    found = [name for pattern in patterns for name in sorted(glob.glob(pattern))]
    for folder in dict.fromkeys((*found, *([activated] if os.path.isabs(activated) else ()))):
        real = os.path.realpath(folder)
        around = any(f"{each}/".startswith(f"{real}/") for each in (root, home))
        if not around and not real.startswith(f"{root}/") and os.path.isfile(f"{real}/pyvenv.cfg"):
            with suppress(OSError), closing(open_root(real)) as handle:
                yield _Environment.read(handle, real)


def _place(pattern: str, home: str) -> str:
    data = os.environ.get("XDG_DATA_HOME") or f"{home}/.local/share"
    cache = os.environ.get("XDG_CACHE_HOME") or f"{home}/.cache"
    return pattern.replace("{data}", data).replace("{cache}", cache).replace("{home}", home)


def _needs(program: str, home: str) -> Iterator[str]:
    """Where a program of the person's PATH is installed, and what it has fetched before; never all of a home."""
    for name, parts in _NEEDS.get(program, {"node": ("bin", "lib/node_modules")}).items():
        path = shutil.which(name)
        folder = os.path.dirname(os.path.dirname(os.path.realpath(path))) if path else home if name == "~" else ""
        yield from (f"{folder}/{part}" for part in parts if folder)


def _commands(root_fd: int) -> Iterator[Command]:
    names = _names(root_fd)
    with suppress(ValueError, AttributeError, RecursionError):  # what is no package of node's
        package = json.loads(_text(root_fd, "package.json"))
        script = str(package.get("scripts", {}).get("test") or "")
        if script and _NO_TEST not in script:
            tool = next(tool for name, tool in _LOCK_FILES.items() if name in names)
            needs = package.get("dependencies") or package.get("devDependencies")
            yield _command((tool, "test"), _SCRIPTS, "node_modules" if needs and "node_modules" not in names else "")
    if "Cargo.toml" in names:
        yield _command(("cargo", "test"), frozenset({".rs"}))
    if "go.mod" in names:
        yield _command(("go", "test", "./..."), frozenset({".go"}))
    if _MAKE_TEST.search(_text(root_fd, "Makefile")):
        yield _command(("make", "test"), _COMPILED)


def _command(words: tuple[str, ...], suffixes: frozenset[str], lacks: str = "") -> Command:
    return Command(words, suffixes, lacks if shutil.which(words[0]) else words[0])


def _text(folder_fd: int, name: str) -> bytes:
    """The beginning of a file, b"" where none is."""
    with suppress(OSError):
        return beginning(folder_fd, (name,))
    return b""


def _names(folder_fd: int, *parts: str) -> list[str]:
    """What is in the folder that the parts lead to, none where there is no such folder."""
    with suppress(OSError), closing(open_directory(folder_fd, parts)) as folder:
        return sorted(os.listdir(folder))
    return []
