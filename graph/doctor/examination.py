"""All checks at once: each bounded in time, none of them able to break the others."""

import contextvars
import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from importlib import import_module
from time import monotonic
from typing import Any, Final

from graph.doctor.finding import Check, Finding, Status, broken, cleaned
from nodes.execute_tools.environment.deadline import Worker
from nodes.execute_tools.secrets.known_secrets import known_values
from nodes.execute_tools.secrets.redact import Redactor

PATIENCE_S: Final = 20.0
"""How long all checks together may take; they are made at the same time."""

DEEP_S: Final = 300.0
"""The same where 1.1 GB are read, on a slow disk."""


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
        "python": _later("machine", "python"),
        "packages": _later("machine", "packages"),
        "module names": _later("machine", "top_level_names"),
        "model": _later("model", "choice", settings, os.environ),
        "endpoint": _not_asked if offline else _later("model", "answer", settings, os.environ),
        "embedded model": _later("model", "weights", settings, os.environ, deep=deep),
        "sandbox": _later("machine", "sandbox"),
        "openat2": _later("machine", "handles"),
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
    for module in ("graph.doctor.machine", "graph.doctor.model", "graph.doctor.store"):
        with suppress(Exception):  # once, before several threads want it; who needs it says what is wrong
            import_module(module)
    found = made(checks, patience_s or (DEEP_S if deep else PATIENCE_S))
    scrub = Redactor(known_values(os.environ)).text
    return tuple(cleaned(each, scrub) for each in found)


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
        found.append(worker.outcome.result() if error is None else broken(name, error, patience_s))
    return found


def _with_configuration(
    root: str, settings: Mapping[str, Any], *, workspace_file: bool
) -> tuple[Mapping[str, Any], Finding]:
    """The settings of a run, with those of files below them; and what is to be said of these files."""
    try:
        from graph.configuration.loading import load_configuration

        read = load_configuration(root, workspace_file=workspace_file)
    except Exception as error:  # noqa: BLE001 - see above
        return settings, broken("configuration", error, 0.0)
    if isinstance(read, tuple):
        said = "; ".join(map(str, read))
        return settings, Finding(
            "configuration", Status.PROBLEM, said, "correct it; `mendgraph config check` shows it again"
        )
    files = ", ".join(read.files)
    found = Finding("configuration", Status.OK if files else Status.OFF, files or "no file; the defaults hold")
    return {**read.values, **settings}, found


def _later(module: str, check: str, *given: Any, **options: Any) -> Check:
    """A check of `graph.doctor`, whose module is loaded when it is made: what that needs may be what is broken."""

    def make() -> Finding:
        found: Finding = getattr(import_module(f"graph.doctor.{module}"), check)(*given, **options)
        return found

    return make


def _not_asked() -> Finding:
    return Finding("endpoint", Status.OFF, "not asked (--offline)")
