"""What a machine lacks for a run: all checks at once, each bounded in time, none of them able to break the others.

A check gives a finding: what there is, how that stands, and a remedy.
"""

import contextvars
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from time import monotonic
from typing import Any, Final

from mendgraph.graph.doctor.findings import Finding, Status, fine, off, problem
from mendgraph.nodes.execute_tools.files.deadline import Worker
from mendgraph.nodes.execute_tools.secrets.known_secrets import known_values
from mendgraph.nodes.execute_tools.secrets.redact import Redactor

PATIENCE_S: Final = 20.0
"""How long all checks together may take; they are made at the same time."""

DEEP_S: Final = 300.0
"""The same where 1.1 GB are read, on a slow disk."""


Check = Callable[[], Finding]


# --- All checks


def examine(
    root: str,
    settings: Mapping[str, Any],
    *,
    offline: bool = False,
    deep: bool = False,
    workspace_file: bool = True,
) -> tuple[Finding, ...]:
    """Make all checks for a run in `root`, whose options are `settings`; nothing is written and nothing is made.

    With `offline` no endpoint is asked. What a check gives is freed of the environment's secrets.
    """
    try:
        from mendgraph.graph.configuration.loading import load_configuration
        from mendgraph.graph.doctor import checks
    except ImportError as error:
        return (
            Finding("packages", Status.PROBLEM, f"one cannot be loaded ({error})", "run `uv sync`, or reinstall it"),
        )
    read = load_configuration(root, workspace_file=workspace_file)
    if isinstance(read, tuple):
        configured = problem("; ".join(map(str, read)), "correct it; `mendgraph config check` shows it again")
    else:
        settings = {**read.values, **settings}
        configured = fine(", ".join(read.files)) if read.files else off("no file; the defaults hold")
    found = made(
        {
            "packages": checks.packages,
            "model": lambda: checks.choice(settings, os.environ),
            "endpoint": lambda: off("not asked (--offline)") if offline else checks.answer(settings, os.environ),
            "embedded model": lambda: checks.weights(settings, os.environ, deep=deep),
            "sandbox": checks.sandbox,
            "ripgrep": checks.ripgrep,
            "git": checks.git,
            "workspace": lambda: checks.workspace(root, read_only=settings.get("mode") == "read-only"),
            "data folder": checks.data,
            "run database": lambda: checks.database(root),
            "lock": lambda: checks.at_work(root),
            "configuration": lambda: configured,
            "terminal": lambda: checks.terminal(sys.stdout, os.environ),
            "extras": checks.extras,
        },
        DEEP_S if deep else PATIENCE_S,
    )
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
        except TimeoutError:
            found.append(
                Finding(name, Status.PROBLEM, f"no answer within {patience_s:g} s", "see what hangs, and try again")
            )
            continue
        if error is None:
            found.append(replace(worker.outcome.result(), name=name))
        else:
            said = f"this could not be checked ({type(error).__name__}: {error})"
            found.append(
                Finding(name, Status.PROBLEM, said, "mend what it names; if that is nothing, please report it")
            )
    return found
