"""Gathers what goes into a bug report, and writes it where nothing is yet."""

import getpass
import json
import os
import platform
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import distributions
from typing import Any

from graph.doctor.bundle import INSIDE, Cleaner, bundle, checkpoint_shapes, run_parts
from graph.doctor.finding import Finding, report
from graph.open_store import with_store
from graph.run_records import RunRecord
from graph.runs import steps_of
from graph.store import Store
from nodes.execute_tools.environment.audit_log import FILE_NAME
from nodes.execute_tools.environment.database import StoreError
from nodes.execute_tools.environment.failures import os_failure, quoted
from nodes.execute_tools.environment.run_folder import run_folder_path
from nodes.execute_tools.environment.user_files import lines_of, open_regular
from nodes.execute_tools.secrets.known_secrets import known_values
from nodes.execute_tools.secrets.redact import Redactor
from nodes.records import ToolError, ToolErrorCode

_NEW = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
_OLDER_LOGS = (f"{FILE_NAME}.2", f"{FILE_NAME}.1", FILE_NAME)


@dataclass(frozen=True)
class Written:
    """A bug report on the disk: its path, and what each file in it is."""

    path: str
    files: Mapping[str, str]
    reproduce: tuple[str, ...]


def write_bundle(
    path: str,
    findings: Sequence[Finding],
    root: str,
    run: str = "",
    *,
    include_messages: bool = False,
    force: bool = False,
) -> Written | ToolError:
    """Write the report to `path`; of `run`, where one is named. CONFLICT where a file is there, unless `force`."""
    parts: dict[str, Any] = {"doctor.json": report(findings), "versions.json": versions()}
    reproduce: tuple[str, ...] = ("mendgraph doctor",)
    if run:
        told = _of_run(root, run, include_messages=include_messages)
        if isinstance(told, ToolError):
            return told
        run_id, more = told
        parts |= more
        reproduce = (
            f"mendgraph runs show {run_id}",
            f"mendgraph resume {run_id}",
            f"mendgraph cassette from-run {run_id}   (a test that replays it)",
        )
    clean = cleaner()
    written = _write(path, bundle(parts, clean, reproduce), force=force)
    if written is not None:
        return written
    files = {name: INSIDE[name] for name in sorted(parts)}
    return Written(os.path.abspath(path), files, tuple(map(clean.text, reproduce)))


def cleaner() -> Cleaner:
    """What takes out the secrets of this environment, and who its user is."""
    home = os.path.expanduser("~")
    user = ""
    with suppress(Exception):  # an account without a name
        user = getpass.getuser()
    homes = tuple({each for each in (home, os.path.realpath(home)) if each not in {"/", "~", ""}})
    return Cleaner(Redactor(known_values(os.environ)), homes, user)


def versions() -> dict[str, Any]:
    """The system, Python, and every installed package with its version."""
    packages = {str(each.metadata["Name"]).lower(): each.version for each in distributions() if each.metadata["Name"]}
    return {
        "platform": platform.platform(),
        "machine": platform.machine(),
        "python": platform.python_version(),
        "implementation": platform.python_implementation(),
        "packages": dict(sorted(packages.items())),
    }


def _of_run(root: str, run: str, *, include_messages: bool) -> tuple[str, dict[str, Any]] | ToolError:
    def gather(store: Store) -> tuple[str, dict[str, Any]] | ToolError:
        record = store.run(run)
        if isinstance(record, ToolError):
            return record
        steps = steps_of(record.run_id, root)
        if isinstance(steps, ToolError):
            return steps
        parts = run_parts(record, record.context, steps, checkpoint_shapes(store.saver, record.run_id))
        parts["run/audit.jsonl"] = _log_of(record.run_id)
        if include_messages:
            parts["run/messages.json"] = _said(store, record)
        return record.run_id, parts

    try:
        return with_store(root, gather)
    except StoreError as error:
        return ToolError(code=ToolErrorCode.IO_ERROR, message=str(error))


def _said(store: Store, record: RunRecord) -> list[dict[str, Any]]:
    """The conversation as the newest checkpoint has it."""
    from graph.build import build_graph
    from graph.open_store import thread_config

    values = build_graph(store.saver).get_state(thread_config(record.run_id)).values
    return [{"type": each.type, "text": each.text} for each in values.get("messages", ())]


def _log_of(run_id: str) -> list[Any]:
    """The lines of the run's log, oldest first; a torn one is left out."""
    found: list[Any] = []
    for name in _OLDER_LOGS:
        with (
            suppress(OSError),
            open_regular(os.path.join(run_folder_path(run_id), name)) as file,
        ):
            for line in lines_of(file, name):
                with suppress(ValueError, RecursionError):
                    found.append(json.loads(line))
    return found


def _write(path: str, content: bytes, *, force: bool) -> ToolError | None:
    try:
        descriptor = os.open(path, _NEW | (os.O_TRUNC if force else os.O_EXCL), 0o600)
    except FileExistsError:
        message = f"The file {quoted(path)} is there already: name another one, or use --force to write over it."
        return ToolError(code=ToolErrorCode.CONFLICT, message=message)
    except OSError as error:
        return os_failure(error, "write", path)
    try:
        with open(descriptor, "wb") as file:
            file.write(content)
    except OSError as error:
        return os_failure(error, "write", path)
    return None
