"""Which programs run a project's tests, as far as it can be seen in its files: nothing is run here.

An environment is used directly, by the interpreter in it, whichever tool keeps it. What lies outside of the workspace
is shown to the sandbox only where that tool keeps its environments, or where a program of the person's own PATH is
installed: a file or a link of the workspace cannot name a folder to be shown.
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

from mendgraph.nodes.execute_tools.files.handles import beginning, closing, open_root
from mendgraph.nodes.execute_tools.processes.bubblewrap import SCRATCH

LOOKED_FOR: Final = (
    "pytest in .venv, venv, .tox and the environments of poetry, pdm, hatch and $VIRTUAL_ENV; a test script in"
    " package.json; Cargo.toml; go.mod; a target test in Makefile"
)
_IN_WORKSPACE: Final = (".venv", "venv", "env", ".hatch/*", ".tox/*", ".nox/*")
_ELSEWHERE: Final = (
    "{cache}/pypoetry/virtualenvs/*-{sha256}-py*",
    "{data}/pdm/venvs/*-{md5}-*",
    "{data}/hatch/env/virtual/*/{sha256}/*",
    "{data}/hatch/env/.internal/hatch-test*/*/{sha256}/*",
)
"""Where poetry, pdm and hatch keep the environments of a project; the hash of its folder is a part of the name."""
_INSTALLATIONS: Final = ("~/.pyenv/versions", "{data}/uv/python", "{data}/pdm/python", "{data}/hatch/pythons", "/opt")
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


class Command(NamedTuple):
    """The command that runs all tests of a project, for files with these suffixes; `lacks` is what it has to have."""

    words: tuple[str, ...]
    suffixes: frozenset[str]
    lacks: str = ""

    @property
    def name(self) -> str:
        """As it is written in a terminal."""
        return " ".join(self.words)


@dataclass(frozen=True)
class Runners:
    """What was found for a workspace: interpreters, the best first, with pytest or not, and commands.

    `readable` are the folders outside that they need, `env` the variables.
    """

    pythons: tuple[str, ...] = ()
    has_pytest: bool = False
    commands: tuple[Command, ...] = ()
    readable: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)

    @property
    def told(self) -> str:
        """What was found, in words; "" for nothing."""
        python = [f"pytest of {self.pythons[0]}"] if self.has_pytest else []
        return "; ".join(
            (*python, *(f"{each.name}{each.lacks and f' (lacks {each.lacks})'}" for each in self.commands))
        )


def find_runners(root: str) -> Runners:
    """What runs the tests of the workspace `root`, a real name."""
    home = os.path.expanduser("~")
    found = list(_environments(root, home))
    found.sort(key=lambda each: not _has_pytest(each))  # those with pytest first, else as they are
    shown = [folder for each in found for folder in _shown(each, root, home)]
    commands = tuple(_commands(root))
    for command in commands:
        shown += _installation(command.words[0], home)
    env = {"npm_config_update_notifier": "false", "CI": "1"}
    env |= {"GOFLAGS": "-mod=readonly", "GOPROXY": "off", "GOTOOLCHAIN": "local", "GOCACHE": f"{SCRATCH}/go"}
    env |= {"CARGO_NET_OFFLINE": "true", "CARGO_TARGET_DIR": f"{SCRATCH}/target", "RUSTUP_HOME": f"{home}/.rustup"}
    env |= {"GOPATH": f"{home}/go", "CARGO_HOME": f"{home}/.cargo"} if commands else {}
    return Runners(
        pythons=tuple(f"{each}/bin/python" for each in found),
        has_pytest=bool(found) and _has_pytest(found[0]),
        commands=commands,
        readable=tuple(dict.fromkeys(each for each in shown if os.path.isdir(each))),
        env=env if commands else {},
    )


def _environments(root: str, home: str) -> Iterator[str]:
    """The Python environments of the project that are there."""
    patterns = [f"{glob.escape(root)}/{each}" for each in _IN_WORKSPACE]
    elsewhere = [_place(each, home) for each in _ELSEWHERE]
    for name in ("sha256", "md5"):
        digest = hashlib.new(name, os.fsencode(root), usedforsecurity=False).digest()
        elsewhere = [each.replace(f"{{{name}}}", base64.urlsafe_b64encode(digest).decode()[:8]) for each in elsewhere]
    patterns += elsewhere
    patterns += [glob.escape(os.environ.get("VIRTUAL_ENV") or os.devnull)]
    for folder in dict.fromkeys(name for pattern in patterns for name in sorted(glob.glob(pattern))):
        if os.path.isfile(f"{folder}/pyvenv.cfg") and os.access(f"{folder}/bin/python", os.X_OK):
            yield folder


def _place(pattern: str, home: str) -> str:
    data = os.environ.get("XDG_DATA_HOME") or f"{home}/.local/share"
    cache = os.environ.get("XDG_CACHE_HOME") or f"{home}/.cache"
    return pattern.replace("{data}", data).replace("{cache}", cache).replace("~", home)


def _has_pytest(environment: str) -> bool:
    return bool(glob.glob(f"{glob.escape(environment)}/lib/python3*/site-packages/pytest"))


def _shown(environment: str, root: str, home: str) -> Iterator[str]:
    """What the interpreter of an environment needs outside of the workspace: itself, and what it is built on."""
    if not environment.startswith(f"{root}/"):
        yield os.path.realpath(environment)
    prefix = os.path.dirname(os.path.dirname(os.path.realpath(f"{environment}/bin/python")))
    known = any(prefix.startswith(f"{os.path.realpath(_place(each, home))}/") for each in _INSTALLATIONS)
    if known and glob.glob(f"{glob.escape(prefix)}/lib/python3*/os.py"):
        yield prefix


def _installation(program: str, home: str) -> Iterator[str]:
    """Where a program of the person's PATH is installed, and what it has fetched before; never all of a home."""
    for name, parts in _NEEDS.get(program, {"node": ("bin", "lib/node_modules")}).items():
        path = home if name == "~" else os.path.dirname(os.path.dirname(os.path.realpath(shutil.which(name) or "/")))
        yield from (f"{path}/{part}" for part in parts)


def _commands(root: str) -> Iterator[Command]:
    if text := _text(root, "package.json"):
        with suppress(ValueError, AttributeError, RecursionError):
            package = json.loads(text)
            script = str(package.get("scripts", {}).get("test") or "")
            needs = bool(package.get("dependencies") or package.get("devDependencies"))
            if script and _NO_TEST not in script:
                tool = next(tool for name, tool in _LOCK_FILES.items() if os.path.isfile(f"{root}/{name}"))
                lacks = "node_modules" if needs and not os.path.isdir(f"{root}/node_modules") else ""
                yield _command((tool, "test"), _SCRIPTS, lacks)
    if _text(root, "Cargo.toml"):
        yield _command(("cargo", "test"), frozenset({".rs"}))
    if _text(root, "go.mod"):
        yield _command(("go", "test", "./..."), frozenset({".go"}))
    if _MAKE_TEST.search(_text(root, "Makefile")):
        yield _command(("make", "test"), _COMPILED)


def _command(words: tuple[str, ...], suffixes: frozenset[str], lacks: str = "") -> Command:
    return Command(words, suffixes, lacks if shutil.which(words[0]) else words[0])


def _text(root: str, name: str) -> bytes:
    """The beginning of a file of the workspace, b"" where none is."""
    with suppress(OSError), closing(open_root(root)) as handle:
        return beginning(handle, (name,))
    return b""
