"""What the spending book has of a run: each try of a model call, with the model that was asked. Read, never written."""

from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256
from typing import Final

from graph.report.amounts import cost_words, seconds_words
from graph.spending_database import BEGINNING, TURN, reading
from graph.terminal.usage_words import output_words
from nodes.execute_tools.environment.database import StoreError

_OF_THREAD: Final = """
SELECT purpose, model, reserved_at, settled_at, input_tokens, output_tokens, cost_usd, seconds, reasoning_tokens
FROM entries
WHERE thread = ? AND purpose NOT IN (?, ?) ORDER BY number
"""
_PURPOSES: Final = {"reply": "reply", "summary": "summary of the conversation", "wrap_up": "account of an early end"}


@dataclass(frozen=True)
class BookedCall:
    """One try of a model call. Until it is `settled` its numbers are what was reserved for it.

    `reasoning_tokens` are those of the output that were thought and not said.
    """

    purpose: str
    model: str
    reserved: datetime
    settled: datetime | None
    input_tokens: int
    output_tokens: int
    cost_usd: float | None
    seconds: float
    reasoning_tokens: int = 0

    def words(self) -> str:
        """The try on one line."""
        what = f"{_PURPOSES.get(self.purpose, self.purpose)} by {self.model or 'an unnamed model'}"
        tokens = f"{self.input_tokens:,} tokens in, {output_words(self.output_tokens, self.reasoning_tokens)}"
        if self.settled is None:
            return f"{what}: not settled; {tokens} are reserved for it"
        if not self.input_tokens + self.output_tokens:
            return f"{what}: failed after {seconds_words(self.seconds)}, and used nothing"
        cost = cost_words(self.cost_usd or 0.0, 0) if self.cost_usd is not None else "no price known"
        return f"{what}: {tokens}, {seconds_words(self.seconds)}, {cost}"


def booked_calls(run_id: str, workspace: str, base: str | None = None) -> list[BookedCall] | None:
    """The calls of a run, oldest first; None where the book cannot be read. It forgets them after two months."""
    thread = f"{run_id} {sha256(workspace.encode('utf-8', 'replace')).hexdigest()[:16]}"
    try:
        with reading(base) as database:
            rows = [] if database is None else database.execute(_OF_THREAD, (thread, BEGINNING, TURN)).fetchall()
    except StoreError:
        return None
    return [
        BookedCall(purpose, model, datetime.fromisoformat(begun), _time(ended), *numbers)
        for purpose, model, begun, ended, *numbers in rows
    ]


def _time(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)
