"""What model calls of all workspaces have cost, written down before and after each: the words and the interface.

A call is entered with what it may cost before it is sent, and with what it has cost afterwards. So a process that is
killed leaves an entry behind, whatever its checkpoints say; until an entry is settled it counts as its reservation.
"""

from typing import Protocol

from nodes.call_model.limits import RunLimits
from nodes.records import Record, StopCause


class Entry(Record):
    """A call before it is sent: whose it is, what for (`reply`, `summary`, `wrap_up`), and the most that it may use.

    `cost_usd` is None where the model's price is not known. No text of anybody is in it.
    """

    thread: str
    model: str
    purpose: str
    input_tokens: int
    output_tokens: int
    cost_usd: float | None

    def is_passed_by(self, used: "Used") -> bool:
        """Was more used than this entry counts until it is settled? Only an endpoint that counts otherwise does it."""
        tokens = used.input_tokens + used.output_tokens > self.input_tokens + self.output_tokens
        return tokens or (used.cost_usd or 0.0) > (self.cost_usd or 0.0)


class Used(Record):
    """What one or more calls have really used; `cost_usd` is None where a price is not known.

    Of the input, `cached_tokens` were read from the provider's cache and `cache_write_tokens` written into it; of the
    output, `reasoning_tokens` were thought and not said.
    """

    calls: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    reasoning_tokens: int = 0
    cache_write_tokens: int = 0
    cost_usd: float | None = 0.0
    seconds: float = 0.0


class SpendingBook(Protocol):
    """Remembers calls beyond the process that makes them. Entries are numbered upwards, and no number comes twice."""

    def lost(self, thread: str, after: int) -> tuple[Used, int]:
        """All entries of the thread with a larger number than `after`, added up, and the largest number of them.

        Where there are none, nothing and `after`.
        """
        ...

    def reserve(self, entry: Entry, limits: RunLimits) -> int | StopCause:
        """Enter a call before it is sent, if it fits into the limits of day and account; or why it may not be sent.

        It counts for the account that the limits name. 0 is the number of a call that cannot be entered and has no such
        limit: nothing is ever settled for it.
        """
        ...

    def settle(self, number: int, used: Used) -> None:
        """Replace a reservation by what was used (nothing, for a call that was never sent). Never waits for a disk.

        Until that is written, and where it cannot be, the entry counts as its reservation.
        """
        ...
