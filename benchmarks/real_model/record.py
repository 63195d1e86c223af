"""What is written down of a task's run: one JSON line each, from which every table can be made again.

Pure. Tokens are those that the server reports; seconds are wall time, those of a replayed call as first measured.
"""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import Field

from mendgraph.nodes.records import Record

LIMIT_CALLS = "limit_calls"
"""How a run ended whose harness wanted more model calls than a task may have."""

LIMIT_TIME = "limit_time"
"""How a run ended that was still at work when its time was over."""

DONE = "done"
"""How a rival's run ended that stopped by itself; ours has typed outcomes instead."""

FAILED = "error"
"""How a run ended whose process failed."""

CLAIMS_SUCCESS = frozenset({DONE, "FINISHED"})
"""The ends by which a harness says that the task is done."""


class CallRecord(Record):
    """One model call. `uncached_tokens` are those of the prompt that the server had not computed before.

    `key` names the exchange in the reply cache, `replayed` says that it came from there; `status` is HTTP's.
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
    """What a harness says of its run: how it ended, its answer, and how often it healed and rescued a reply.

    `seconds` do not count the start of its interpreter. `events` counts what it told while it ran, by name. Ours also
    has the first line that the terminal says of the outcome, and what the checks came to.
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
    """One harness's run of one task. `problem` is None where the task is solved; `changes` says that it asks for some.

    `tries` counts the requests that were made: a second one where the task has it and the first did not solve it.
    `label` tells settings of one harness apart; `digest` is that of the task with its check: results of an
    older one are not taken for those of the new one.
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
        """What there is one result of: a harness with its label, and a task."""
        return self.harness, self.label, self.task

    @property
    def wrong_claim(self) -> bool:
        """Whether the harness says that it is done, and it is not."""
        return self.problem is not None and self.end.ended in CLAIMS_SUCCESS

    @property
    def false_claim(self) -> bool:
        """Whether the harness says that it is done, and has changed nothing of what it was asked to change."""
        return self.changes and self.end.ended in CLAIMS_SUCCESS and not self.changed_files


def read_records(text: str) -> list[RunRecord]:
    """The results in a file's text, of each place the last one. A line that a kill cut off is left out."""
    newest: dict[tuple[str, str, str], RunRecord] = {}
    lines = text.splitlines(keepends=True)
    for line in lines:
        if line.endswith("\n") and line.strip():
            record = RunRecord.model_validate_json(line)
            newest.pop(record.place, None)
            newest[record.place] = record
    return list(newest.values())


def line_of(record: RunRecord) -> str:
    """A result as its line."""
    return record.model_dump_json() + "\n"


def text_digest(text: str) -> str:
    """A short name for a text."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def changed_files(before: Mapping[str, bytes], after: Mapping[str, bytes]) -> tuple[str, ...]:
    """The paths whose bytes differ between two snapshots of a workspace, made and deleted files included."""
    return tuple(sorted(path for path in {*before, *after} if before.get(path) != after.get(path)))


def default_label(protocol: str | None, options: Sequence[str]) -> str:
    """What settings are called that got no name: the settings themselves, "default" where there are none."""
    named = ([protocol] if protocol else []) + sorted(options)
    return ",".join(named) or "default"
