"""What a machine lacks for a run: all checks at once, each bounded in time, none of them able to break the others.

A check gives a finding: what there is, how that stands, and a remedy.
"""

import contextvars
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from importlib import import_module
from time import monotonic
from typing import Any, Final

from mendgraph.nodes.execute_tools.files.deadline import Worker
from mendgraph.nodes.execute_tools.secrets.known_secrets import known_values
from mendgraph.nodes.execute_tools.secrets.redact import Redactor

PATIENCE_S: Final = 20.0
"""How long all checks together may take; they are made at the same time."""

DEEP_S: Final = 300.0
"""The same where 1.1 GB are read, on a slow disk."""


class Status(StrEnum):
    """How it stands: fine; worth knowing; no run goes well with it; or not there, and not needed either."""

    OK, WARNING, PROBLEM, OFF = "ok", "warning", "problem", "off"


@dataclass(frozen=True)
class Finding:
    """One check: `found` says what there is, `remedy` what to do, "" where nothing is to be done."""

    name: str
    status: Status
    found: str
    remedy: str = ""


Check = Callable[[], Finding]


def fine(found: str) -> Finding:
    """A check that went well."""
    return Finding("", Status.OK, found)


def warning(found: str, remedy: str) -> Finding:
    """Something worth knowing."""
    return Finding("", Status.WARNING, found, remedy)


def problem(found: str, remedy: str) -> Finding:
    """Something with which no run goes well."""
    return Finding("", Status.PROBLEM, found, remedy)


def off(found: str, remedy: str = "") -> Finding:
    """Something that is not there, and not needed either."""
    return Finding("", Status.OFF, found, remedy)


def is_fine(findings: Iterable[Finding]) -> bool:
    """Whether none of them is a problem."""
    return all(each.status is not Status.PROBLEM for each in findings)


def broken(name: str, error: BaseException, seconds: float) -> Finding:
    """What is said of a check that could not be made: it took too long, or it raised."""
    if isinstance(error, TimeoutError):
        return Finding(name, Status.PROBLEM, f"no answer within {seconds:g} s", "see what hangs, and try again")
    said = f"this could not be checked ({type(error).__name__}: {error})"
    return Finding(name, Status.PROBLEM, said, "mend what it names; if that is nothing, please report it")


def report(findings: Iterable[Finding]) -> dict[str, Any]:
    """The findings for programs, and whether none is a problem."""
    listed = list(findings)
    return {"ok": is_fine(listed), "checks": [asdict(each) for each in listed]}


def summary(findings: Iterable[Finding]) -> str:
    """The last line: how many problems and warnings there are."""
    listed = list(findings)
    counts = {status: sum(each.status is status for each in listed) for status in Status}
    problems, warnings = counts[Status.PROBLEM], counts[Status.WARNING]
    if not problems and not warnings:
        return "all is well"
    named = [(problems, "problem"), (warnings, "warning")]
    return ", ".join(f"{count} {word}{'' if count == 1 else 's'}" for count, word in named if count)


# --- All checks


def examine(
    root: str,
    settings: Mapping[str, Any],
    *,
    offline: bool = False,
    deep: bool = False,
    workspace_file: bool = True,
    patience_s: float | None = None,
) -> tuple[Finding, ...]:
    """Make all checks for a run in `root`, whose options are `settings`; nothing is written and nothing is made.

    With `offline` no endpoint is asked. What a check gives is freed of the environment's secrets.
    """
    settings, configured = _with_configuration(root, settings, workspace_file=workspace_file)
    checks: dict[str, Check] = {
        "packages": _later("machine", "packages"),
        "model": _later("model", "choice", settings, os.environ),
        "endpoint": _later("model", "answer", settings, os.environ),
        "embedded model": _later("model", "weights", settings, os.environ, deep=deep),
        "sandbox": _later("machine", "sandbox"),
        "ripgrep": _later("machine", "ripgrep"),
        "git": _later("machine", "git", root),
        "workspace": _later("store", "workspace", root, read_only=settings.get("mode") == "read-only"),
        "data folder": _later("store", "data"),
        "run database": _later("store", "database", root),
        "lock": _later("store", "at_work", root),
        "configuration": lambda: configured,
        "terminal": _later("machine", "terminal", sys.stdout, os.environ),
        "extras": _later("machine", "extras"),
    }
    if offline:
        checks["endpoint"] = lambda: off("not asked (--offline)")
    for module in ("mendgraph.graph.doctor.machine", "mendgraph.graph.doctor.model", "mendgraph.graph.doctor.store"):
        with suppress(Exception):  # once, before several threads want it; who needs it says what is wrong
            import_module(module)
    found = made(checks, patience_s or (DEEP_S if deep else PATIENCE_S))
    scrub = Redactor(known_values(os.environ)).text
    return tuple(replace(each, found=scrub(each.found), remedy=scrub(each.remedy)) for each in found)


def made(checks: Mapping[str, Check], patience_s: float) -> list[Finding]:
    """What the checks give, in order. One that raises, or is not done in time, is a problem of its own."""
    workers = {name: Worker(contextvars.copy_context(), check) for name, check in checks.items()}
    until = monotonic() + patience_s
    found = []
    for name, worker in workers.items():
        try:
            error = worker.outcome.exception(max(0.0, until - monotonic()))
        except TimeoutError as late:
            error = late
        found.append(replace(worker.outcome.result(), name=name) if error is None else broken(name, error, patience_s))
    return found


def _with_configuration(
    root: str, settings: Mapping[str, Any], *, workspace_file: bool
) -> tuple[Mapping[str, Any], Finding]:
    """The settings of a run, with those of files below them; and what is to be said of these files."""
    try:
        from mendgraph.graph.configuration.loading import load_configuration

        read = load_configuration(root, workspace_file=workspace_file)
    except Exception as error:  # noqa: BLE001 - see above
        return settings, broken("configuration", error, 0.0)
    if isinstance(read, tuple):
        remedy = "correct it; `mendgraph config check` shows it again"
        return settings, problem("; ".join(map(str, read)), remedy)
    files = ", ".join(read.files)
    return {**read.values, **settings}, fine(files) if files else off("no file; the defaults hold")


def _later(module: str, check: str, *given: Any, **options: Any) -> Check:
    """A check of `graph.doctor`, whose module is loaded when it is made: what that needs may be what is broken."""

    def make() -> Finding:
        found: Finding = getattr(import_module(f"mendgraph.graph.doctor.{module}"), check)(*given, **options)
        return found

    return make
