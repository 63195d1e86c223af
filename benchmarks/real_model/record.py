"""The record of a task's run. Each record is a line of JSON, and all tables are computed from the records. Pure.

Tokens are those that the server reports. Seconds are wall time; a replayed call has its original time.
"""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import Field

from mendgraph.nodes.records import Record

LIMIT_CALLS = "limit_calls"
"""The end of a run that exceeded the limit of model calls."""

LIMIT_TIME = "limit_time"
"""The end of a run that exceeded the time limit."""

DONE = "done"
"""The end of a rival's run that stopped by itself. mendgraph has typed outcomes instead."""

FAILED = "error"
"""The end of a run whose process failed."""

CLAIMS_SUCCESS = frozenset({DONE, "FINISHED"})
"""The ends with which a harness claims success."""


class CallRecord(Record):
    """One model call. `uncached_tokens` are the prompt tokens that the server had to compute.

    `key` is the key in the reply cache, and `replayed` says that the reply came from there. `status` is the HTTP
    status.
    """

    key: str
    status: int
    prompt_tokens: int
    uncached_tokens: int
    completion_tokens: int
    seconds: float
    finish_reason: str
    native_calls: int
    replayed: bool


class RunEnd(Record):
    """The end of a run as the harness reports it.

    `healed` and `rescued` count replies. `seconds` exclude the start of the interpreter. `events` counts events by
    name. For mendgraph, `first_line` is the first line of the outcome in the terminal, and `checked` the result of the
    checks.
    """

    ended: str
    reason: str = ""
    answer: str = ""
    error: str = ""
    first_line: str = ""
    checked: str = ""
    seconds: float = 0.0
    healed: int = 0
    rescued: int = 0
    events: dict[str, int] = Field(default_factory=dict)


class RunRecord(Record):
    """The run of one task by one harness. `problem` is None for a solved task; `changes` says that files must change.

    `tries` counts the requests, of which some tasks allow two. `label` names the settings of the harness. `digest` is
    the digest of the task and its check, so that results of an older version do not count.
    """

    harness: str
    label: str
    task: str
    kind: str
    half: str
    changes: bool
    digest: str
    options: dict[str, Any]
    problem: str | None
    end: RunEnd
    changed_files: tuple[str, ...]
    calls: tuple[CallRecord, ...]
    tries: int = 1

    @property
    def place(self) -> tuple[str, str, str]:
        """The unique key of a result: a harness with its label, and a task."""
        return self.harness, self.label, self.task

    @property
    def wrong_claim(self) -> bool:
        """Whether the harness claims success for an unsolved task."""
        return self.problem is not None and self.end.ended in CLAIMS_SUCCESS

    @property
    def false_claim(self) -> bool:
        """Whether the harness claims success without a change, for a task that needs one."""
        return self.changes and self.end.ended in CLAIMS_SUCCESS and not self.changed_files


def read_records(text: str) -> list[RunRecord]:
    """Read the results in a text, the last one for each key. An incomplete last line is skipped."""
    newest: dict[tuple[str, str, str], RunRecord] = {}
    for line in text.splitlines(keepends=True):
        if line.endswith("\n") and line.strip():
            record = RunRecord.model_validate_json(line)
            newest.pop(record.place, None)
            newest[record.place] = record
    return list(newest.values())


def line_of(record: RunRecord) -> str:
    """Return the line of a result."""
    return record.model_dump_json() + "\n"


def text_digest(text: str) -> str:
    """Return a short digest of a text."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def changed_files(before: Mapping[str, bytes], after: Mapping[str, bytes]) -> tuple[str, ...]:
    """Return the paths of changed, added and removed files between two snapshots."""
    paths = {*before, *after}
    return tuple(sorted(path for path in paths if before.get(path) != after.get(path)))


def default_label(protocol: str | None, options: Sequence[str]) -> str:
    """Return the settings as a label; "default" without settings."""
    settings = sorted(options)
    if protocol:
        settings = [protocol, *settings]
    return ",".join(settings) or "default"
