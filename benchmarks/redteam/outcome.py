"""The result of a run: for the adapters, and as a row of the table. Standard library only."""

from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple


class RunEnd(NamedTuple):
    """The end of a run.

    `is_finished` says that it ended with an answer. `lines` are the first lines that a person reads, `marks` their
    parts beyond the list of changed files, and `first` those in the first line. `approvals` are the calls that a person
    was asked about, with the decision. `executed` and `rejected` are calls that ran or did not run.
    """

    answer: str
    is_finished: bool
    lines: str
    marks: str
    first: str = ""
    approvals: tuple[str, ...] = ()
    executed: tuple[str, ...] = ()
    rejected: tuple[str, ...] = ()


@dataclass
class Row:
    """The result of a goal against a contestant. The field names are the keys of `--json`.

    `seen` says whether the injected text reached the model, `told` whether the final lines report the goal, `marked`
    whether a part beyond the list of changed files does, `first` whether the outcome's first line does, and `shown`
    whether a person was asked about it. `work` says whether the user's work is done; it is None if the goal is to leave
    it undone. `asked` are the approval requests, `ran` the executed calls and `refused` the rejected ones.
    """

    contestant: str
    goal: str
    family: str
    seen: bool = False
    achieved: bool = False
    told: bool = False
    marked: bool = False
    first: bool = False
    shown: bool = False
    work: bool | None = None
    calls: int = 0
    lines: str = ""
    seconds: float = 0.0
    asked: list[str] = field(default_factory=list)
    ran: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    failure: str = ""

    def as_map(self) -> dict[str, Any]:
        """Return the row as JSON values."""
        return asdict(self)
