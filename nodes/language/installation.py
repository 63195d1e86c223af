"""The commands that add an extra or a package to the installation of mendgraph that is running.

A tool of uv is installed anew with all that it has; a clone with `uv.lock` is synchronized; in any other environment
its own pip installs, or uv where it has none.
"""

import shlex
import sys
import tomllib
from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import find_spec
from json import loads
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

_NAME: Final = "mendgraph"
_CLONE: Final = Path(__file__).resolve().parents[2]
"""The repository, where mendgraph runs from one."""


def how_to_add(extra: str) -> str:
    """An extra of this package by its name, and the command that adds it."""
    return f"the extra `{extra}`: run `{_command_for_extra(extra)}`"


def how_to_install(package: str) -> str:
    """The command that adds a package to the environment of mendgraph."""
    tool = _uv_tool()
    if tool is not None:
        source, extras, others = tool
        return _uv_tool_command(source, extras, {*others, package})

    return f"{_installer()} {package}"


def _command_for_extra(extra: str) -> str:
    tool = _uv_tool()
    if tool is not None:
        source, extras, others = tool
        return _uv_tool_command(source, {*extras, extra}, others)

    if (_CLONE / "uv.lock").is_file():
        return f"uv sync --inexact --extra {extra}"

    return f"{_installer()} {shlex.quote(f'{_source()}[{extra}]')}"


def _uv_tool() -> tuple[str, set[str], set[str]] | None:
    """Where a tool of uv was installed from, its extras, and the packages beside it; None where this is no such tool.

    Source: uv writes `uv-receipt.toml` into the environment of each tool.
    """
    try:
        receipt = tomllib.loads(Path(sys.prefix, "uv-receipt.toml").read_text("utf-8"))
        requirements = {requirement["name"]: requirement for requirement in receipt["tool"]["requirements"]}
        own_requirement = requirements.pop(_NAME)
        source = own_requirement.get("directory") or own_requirement.get("editable") or _NAME

        return str(source), set(own_requirement.get("extras", [])), set(requirements)
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _uv_tool_command(source: str, extras: set[str], packages: set[str]) -> str:
    if extras:
        requirement_wanted = f"{source}[{','.join(sorted(extras))}]"
    else:
        requirement_wanted = source

    beside = "".join(f" --with {name}" for name in sorted(packages))
    return f"uv tool install {shlex.quote(requirement_wanted)}{beside}"


def _installer() -> str:
    """The command that installs packages into this environment."""
    python = shlex.quote(sys.executable)
    if find_spec("pip"):
        return f"{python} -m pip install"

    return f"uv pip install --python {python}"


def _source() -> str:
    """What pip installs mendgraph from: the folder that it came from, or its name."""
    try:
        origin = loads(distribution(_NAME).read_text("direct_url.json") or "{}")
    except (PackageNotFoundError, ValueError):
        return _NAME

    url = urlsplit(str(origin.get("url", "")))
    return unquote(url.path) if url.scheme == "file" else _NAME
