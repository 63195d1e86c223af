"""A bug report that somebody else can work with: what the machine is, and what a run did, without what was said.

The same input gives the same bytes: names are sorted, and times of files are fixed. Pure, but for the store's reading.
"""

import getpass
import io
import json
import os
import platform
import re
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from importlib.metadata import distributions
from typing import Any, Final

from langgraph.checkpoint.base import BaseCheckpointSaver

from mendgraph.graph.doctor.examination import Finding, report
from mendgraph.graph.machine.run_records import RunRecord
from mendgraph.graph.persistence.store import Store
from mendgraph.graph.runs.runs import RunStep, steps_of, thread_config, with_store
from mendgraph.nodes.execute_tools.files.failures import os_failure, quoted
from mendgraph.nodes.execute_tools.secrets.known_secrets import known_values
from mendgraph.nodes.execute_tools.secrets.redact import Redactor
from mendgraph.nodes.execute_tools.store.audit_log import FILE_NAME
from mendgraph.nodes.execute_tools.store.run_folder import run_folder_path
from mendgraph.nodes.execute_tools.store.user_files import lines_of, open_regular
from mendgraph.nodes.records import ToolCall, ToolError, ToolErrorCode

_EARLIEST: Final = (1980, 1, 1, 0, 0, 0)
"""The time of every file inside. Source: the ZIP format knows none before."""

_SHORTEST_NAME: Final = 3
_COMMON: Final = frozenset({"root", "user", "admin", "agent", "home", "nobody"})
"""User names that are words: they name nobody, and stand in harmless texts."""

_NOT_SHOWN: Final = ("task", "request", "answer", "stored_context", "context")
"""Fields of a run's record that hold what was said, or stand in a file of their own."""

INSIDE: Final[Mapping[str, str]] = {
    "doctor.json": "what `mendgraph doctor` found",
    "versions.json": "the system, Python, and all installed packages",
    "run/run.json": "the run's standing, outcome and last error",
    "run/context.json": "its settings and limits",
    "run/steps.json": "its steps: the tools that were called, with the names of their arguments, and the files changed",
    "run/audit.jsonl": "its log: each call with verdict, result code and time",
    "run/checkpoints.json": "its checkpoints: kinds and sizes of what they hold",
    "run/messages.json": "what was said, as you have asked for it",
}
"""What each file of a bundle is."""


@dataclass(frozen=True)
class Cleaner:
    """Takes out what is nobody's business: secrets, the user's name and home folder."""

    redactor: Redactor
    homes: tuple[str, ...]
    user: str = ""

    def text(self, text: str) -> str:
        """The text without them. Secrets go first: one in which a name is taken out is known no more."""
        text = self.redactor.text(text)
        for home in sorted(filter(None, self.homes), key=len, reverse=True):
            text = re.sub(rf"{re.escape(home)}(?![\w.-])", "~", text)
        if len(self.user) >= _SHORTEST_NAME and self.user.lower() not in _COMMON:
            text = re.sub(rf"(?<!\w){re.escape(self.user)}(?!\w)", "~", text)
        return text

    def value(self, value: Any) -> Any:
        """A JSON value, in which every text has gone through `text`; names of secrets hide what they name."""
        return self._walked(self.redactor.value(value))

    def _walked(self, value: Any) -> Any:
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, Mapping):
            return {self.text(str(name)): self._walked(each) for name, each in value.items()}
        return [self._walked(each) for each in value] if isinstance(value, list | tuple) else value


def _checkpoint_shapes(saver: BaseCheckpointSaver[Any], run_id: str) -> list[dict[str, Any]]:
    return [
        {
            "id": str(each.checkpoint["id"]),
            "source": str((each.metadata or {}).get("source", "")),
            "step": (each.metadata or {}).get("step"),
            "writes": [f"{channel}: {_shape(value)}" for _, channel, value in each.pending_writes or ()],
            "channels": {name: _shape(value) for name, value in sorted(each.checkpoint["channel_values"].items())},
        }
        for each in saver.list(thread_config(run_id))
    ]


def _shape(value: Any) -> str:
    """What kind of value it is, and how large; nothing of what it says."""
    kind = type(value).__name__
    return f"{kind}[{len(value)}]" if isinstance(value, str | bytes | list | tuple | dict | set) else kind


def bundle(parts: Mapping[str, Any], clean: Cleaner, reproduce: Iterable[str]) -> bytes:
    """The ZIP file with these parts, each cleaned, and a README.txt that says what is inside and how to reproduce it.

    A part is a JSON value, or a list of those for `.jsonl`.
    """
    files = {name: _encoded(name, clean.value(value), clean.redactor) for name, value in parts.items()}
    listed = [f"  {name}: {INSIDE.get(name, 'more')}" for name in sorted(files)]
    said = ["A report of mendgraph. Secrets are taken out, names of users and home folders are ~.", *listed]
    files["README.txt"] = clean.text(
        "\n".join([*said, "", "To reproduce:", *(f"  {each}" for each in reproduce), ""])
    ).encode()
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in sorted(files):
            entry = zipfile.ZipInfo(name, _EARLIEST)
            entry.compress_type, entry.external_attr = zipfile.ZIP_DEFLATED, 0o600 << 16
            entry.create_system = 3
            archive.writestr(entry, files[name])
    return packed.getvalue()


def _step(step: RunStep) -> dict[str, Any]:
    calls = [
        {"tool": each.tool, "arguments": sorted(each.arguments) if isinstance(each, ToolCall) else []}
        for each in step.calls
    ]
    told = {"number": step.number, "kind": step.kind.value, "turn": step.turn, "can_fork": step.can_fork}
    return {**told, "calls": calls, "changed": list(step.changed)}


def _encoded(name: str, value: Any, redactor: Redactor) -> bytes:
    dumped = partial(json.dumps, sort_keys=True, default=str)
    text = "\n".join(map(dumped, value)) if name.endswith(".jsonl") else dumped(value, indent=2)
    return redactor.final(f"{text}\n".encode())


# --- Gathering and writing


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
        run_id, of_run = told
        parts |= of_run
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
        known = {
            name: value for name, value in vars(record).items() if name not in _NOT_SHOWN and not name.startswith("_")
        }
        parts = {
            "run/run.json": {**known, "changed": list(record.changed)},
            "run/context.json": record.context.model_dump(mode="json"),
            "run/steps.json": [_step(each) for each in steps],
            "run/checkpoints.json": _checkpoint_shapes(store.saver, record.run_id),
            "run/audit.jsonl": _log_of(record.run_id),
        }
        if include_messages:
            parts["run/messages.json"] = _messages(store, record)
        return record.run_id, parts

    return with_store(root, gather)


def _messages(store: Store, record: RunRecord) -> list[dict[str, Any]]:
    from mendgraph.graph.machine.build import build_graph

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
        with open(descriptor, "wb") as file:
            file.write(content)
    except FileExistsError:
        message = f"The file {quoted(path)} is there already: name another one, or use --force to write over it."
        return ToolError(code=ToolErrorCode.CONFLICT, message=message)
    except OSError as error:
        return os_failure(error, "write", path)
    return None
