"""A bug report that somebody else can work with: what the machine is, and what a run did, without what was said.

The same input gives the same bytes: names are sorted, and times of files are fixed. Pure, but for the store's reading.
"""

import io
import json
import re
import zipfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from langgraph.checkpoint.base import BaseCheckpointSaver

from graph.context import AgentContext
from graph.open_store import thread_config
from graph.run_records import RunRecord
from graph.run_steps import RunStep
from nodes.execute_tools.secrets.redact import Redactor
from nodes.records import ToolCall

_EARLIEST: Final = (1980, 1, 1, 0, 0, 0)
"""The time of every file inside. Source: the ZIP format knows none before."""

_SHORTEST_NAME: Final = 3
_COMMON: Final = frozenset({"root", "user", "admin", "agent", "home", "nobody"})
"""User names that are words: they name nobody, and stand in harmless texts."""

_UNSAID: Final = ("task", "request", "answer", "stored_context")
"""Fields of a run's record that hold what was said."""

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


def run_parts(
    record: RunRecord, context: AgentContext, steps: Iterable[RunStep], checkpoints: Iterable[Mapping[str, Any]]
) -> dict[str, Any]:
    """The files about one run, without a word of what was said in it."""
    known = {name: value for name, value in vars(record).items() if name not in _UNSAID and not name.startswith("_")}
    known.pop("context", None)
    return {
        "run/run.json": {**known, "changed": list(record.changed)},
        "run/context.json": context.model_dump(mode="json"),
        "run/steps.json": [_step(each) for each in steps],
        "run/checkpoints.json": list(checkpoints),
    }


def checkpoint_shapes(saver: BaseCheckpointSaver[Any], run_id: str) -> list[dict[str, Any]]:
    """Each checkpoint of a run, newest first: its id and source, and the kind and size of each channel.

    Raises:
        StoreError: one cannot be read.
    """
    return [
        {
            "id": str(each.checkpoint["id"]),
            "source": str((each.metadata or {}).get("source", "")),
            "step": (each.metadata or {}).get("step"),
            "writes": [f"{channel}: {shape(value)}" for _, channel, value in each.pending_writes or ()],
            "channels": {name: shape(value) for name, value in sorted(each.checkpoint["channel_values"].items())},
        }
        for each in saver.list(thread_config(run_id))
    ]


def shape(value: Any) -> str:
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
    dumped: Callable[[Any], str] = lambda each: json.dumps(each, sort_keys=True, default=str)  # noqa: E731 - two uses below
    if name.endswith(".jsonl"):
        return redactor.final("".join(f"{dumped(each)}\n" for each in value).encode())
    return redactor.final((json.dumps(value, indent=2, sort_keys=True, default=str) + "\n").encode())
