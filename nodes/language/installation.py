"""The commands that add an extra or a package to the running installation of mendgraph.

A uv tool is reinstalled with everything that it has; a clone with `uv.lock` is synchronized; in any other environment
its pip installs the package, or uv if there is no pip.
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
"""The root of the repository, if mendgraph runs from a clone."""


def how_to_add(extra: str) -> str:
    """Return the name of the extra and the command that adds it."""
    return f"the extra `{extra}`: run `{_command_for_extra(extra)}`"


def how_to_install(package: str) -> str:
    """Return the command that adds a package to mendgraph's environment."""
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
    """Return the source, the extras and the other packages of a uv tool; None if this is not one.

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
    """Return the command that installs packages into this environment."""
    python = shlex.quote(sys.executable)
    if find_spec("pip"):
        return f"{python} -m pip install"

    return f"uv pip install --python {python}"


def _source() -> str:
    """Return the argument for pip that installs mendgraph again: the folder that it came from, or its name."""
    try:
        origin = loads(distribution(_NAME).read_text("direct_url.json") or "{}")
    except (PackageNotFoundError, ValueError):
        return _NAME

    url = urlsplit(str(origin.get("url", "")))
    return unquote(url.path) if url.scheme == "file" else _NAME
