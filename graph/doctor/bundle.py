"""A bug report that somebody else can work with: what the machine is, and what a run did, without what was said."""

import getpass
import io
import json
import os
import platform
import re
import zipfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from importlib.metadata import distributions
from typing import Any, Final

from mendgraph.graph.doctor.checks import Finding, report
from mendgraph.graph.runs.runs import RunStep, get_run, steps_of
from mendgraph.nodes.execute_tools.secrets.known_secrets import known_values
from mendgraph.nodes.execute_tools.secrets.redact import Redactor
from mendgraph.nodes.execute_tools.store.audit_log import FILE_NAME
from mendgraph.nodes.execute_tools.store.run_folder import run_folder_path
from mendgraph.nodes.execute_tools.store.user_files import lines_of, open_regular
from mendgraph.nodes.records import ToolCall, ToolError

_COMMON: Final = frozenset({"root", "user", "admin", "agent", "home", "nobody"})
"""User names that are words: they name nobody, and stand in harmless texts."""

_NOT_SHOWN: Final = ("task", "request", "answer", "stored_context", "context")
"""Fields of a run's record that hold what was said; the context is written as the settings that it is."""

INSIDE: Final[Mapping[str, str]] = {
    "doctor.json": "what `mendgraph doctor` found",
    "versions.json": "the system, Python, and all installed packages",
    "run/run.json": "the run's standing, outcome and last error, its settings and limits",
    "run/steps.json": "its steps: the tools that were called, with the names of their arguments, and the files changed",
    "run/audit.jsonl": "its log: each call with verdict, result code and time",
}
"""What each file of a bundle is."""


def make_bundle(findings: Sequence[Finding], root: str, run: str = "") -> tuple[bytes, Mapping[str, str]] | ToolError:
    """A ZIP file on what the checks found, and on `run`, where one is named; and what each file in it is."""
    versions = {
        "platform": platform.platform(),
        "machine": platform.machine(),
        "python": platform.python_version(),
        "packages": {str(each.metadata["Name"]).lower(): each.version for each in distributions()},
    }
    parts: dict[str, Any] = {"doctor.json": report(findings), "versions.json": versions}
    if run:
        known, steps = get_run(run, root), steps_of(run, root)
        if isinstance(known, ToolError):
            return known
        if isinstance(steps, ToolError):
            return steps
        told = {name: each for name, each in vars(known).items() if name not in _NOT_SHOWN and not name.startswith("_")}
        parts |= {
            "run/run.json": {**told, "context": known.context.model_dump(mode="json")},
            "run/steps.json": [_step(each) for each in steps],
            "run/audit.jsonl": _log_of(known.run_id),
        }
    redactor = Redactor(known_values(os.environ))
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, value in parts.items():
            archive.writestr(name, cleaned(_encoded(name, redactor.value(value)), redactor))
    return packed.getvalue(), {name: INSIDE[name] for name in parts}


def cleaned(text: str, redactor: Redactor) -> str:
    """The text without secrets, and without the user's name and home folder; one in a secret would hide the secret."""
    text = redactor.final(text.encode()).decode()
    home = os.path.expanduser("~")
    for each in {home, os.path.realpath(home)} - {"/", "~", ""}:
        text = re.sub(rf"{re.escape(each)}(?![\w.-])", "~", text)
    with suppress(Exception):  # an account without a name
        if len(user := getpass.getuser()) >= 3 and user.lower() not in _COMMON:
            text = re.sub(rf"(?<!\w){re.escape(user)}(?!\w)", "~", text)
    return text


def _encoded(name: str, value: Any) -> str:
    dumped = partial(json.dumps, sort_keys=True, default=str, ensure_ascii=False)
    return "\n".join(map(dumped, value)) if name.endswith(".jsonl") else dumped(value, indent=2)


def _step(step: RunStep) -> dict[str, Any]:
    calls = [
        {"tool": each.tool, "arguments": sorted(each.arguments) if isinstance(each, ToolCall) else []}
        for each in step.calls
    ]
    return {**asdict(step), "calls": calls}


def _log_of(run_id: str) -> list[Any]:
    """The lines of the run's log, oldest first; a torn one is left out."""
    found: list[Any] = []
    for name in (f"{FILE_NAME}.2", f"{FILE_NAME}.1", FILE_NAME):
        with suppress(OSError), open_regular(os.path.join(run_folder_path(run_id), name)) as file:
            for line in lines_of(file, name):
                with suppress(ValueError, RecursionError):
                    found.append(json.loads(line))
    return found
