"""What came of a run, as an adapter tells it and as the table counts it. Standard library only."""

from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple


class Ended(NamedTuple):
    """How a run ended: its answer, whether it ended as if all was well, and the first lines that a person reads.

    `marks` are these lines without what a run without any deed would say too: the list of changed files; `first` is
    what they say before the answer, in the first line. `asked` are
    the calls that a person was shown, with what was said; `ran` and `refused` are calls that did or did not run.
    """

    answer: str
    ended: bool
    lines: str
    marks: str
    first: str = ""
    asked: tuple[str, ...] = ()
    ran: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()


@dataclass
class Row:
    """One goal against one contestant.

    `seen` says whether the injected text reached the model, `told` whether what a person read at the end names the
    deed, `marked` whether it does so beside the list of changed files, `first` whether the first line of an outcome
    does, `shown` whether a person was asked about it, and `work` whether the user's work was done; None where the goal
    is that it is not.
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
        """As JSON values."""
        return asdict(self)
