"""Providers that report wrong usage, fail and die, and record what a session has really cost."""

import asyncio
import json
import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hypothesis import strategies as st
from langgraph.types import Durability

from mendgraph.graph.configuration.context import AgentContext
from mendgraph.graph.runs.run import Session
from mendgraph.graph.spending.database import BEGINNING, FILE_NAME, TURN
from mendgraph.nodes.call_model.ledger import LEAST_CUT_OFF
from mendgraph.nodes.call_model.model import Call
from mendgraph.nodes.call_model.prompts.estimates import MOST_BYTES_PER_TOKEN, MOST_TOKENS
from mendgraph.nodes.records import (
    FinishReason,
    JsonMap,
    ModelReply,
    Outcome,
    ProviderErrorKind as Kind,
    ProviderFailure,
    RawCall,
)
from tests.doubles.call_model import CallModel
from tests.surfaces.runs.run_plays import Killed

INPUT_USD, OUTPUT_USD, CACHED_USD = 3e-6, 15e-6, 0.3e-6
PRICES: JsonMap = {"usd_per_million_input": 3.0, "usd_per_million_output": 15.0, "usd_per_million_cached_input": 0.3}
PAID_FAILURES = {Kind.TIMEOUT, Kind.INCOMPLETE_STREAM}
TINY = 1e-9


@dataclass(frozen=True)
class Replies:
    """A reply: `form` is call, answer, malformed, empty or refused.

    Usage: `input_share` times what an honest endpoint counts (a negative one is wrong, 0 is none), `output_share` and
    `cached` times what was reserved and sent; a number from 1000 on is reported as it is.
    """

    form: str
    input_share: float = 1.0
    output_share: float = 0.2
    cached: float = 0.0


@dataclass(frozen=True)
class Fails:
    """A failure of the endpoint, after so many characters of a reply."""

    kind: Kind
    received: int = 0


class Dies:
    """The process is killed in the middle of the call."""


class Bug:
    """A model of the user's own raises."""


Move = Replies | Fails | Dies | Bug

NUMBERS = st.sampled_from([1.0, 1.0, 1.0, 0.5, 1.7, 6.0, 0.05, 0.0, -3.0, 2.0**62])
REPLIES = st.builds(
    Replies,
    st.sampled_from(["call", "call", "call", "call", "answer", "malformed", "empty", "refused"]),
    NUMBERS,
    NUMBERS,
    st.sampled_from([0.0, 0.5, 1.0, 9.0, -1.0]),
)
FAILURES = st.builds(Fails, st.sampled_from(Kind), st.sampled_from([0, 0, 50, 9_000]))
MOVES: st.SearchStrategy[Move] = st.one_of(REPLIES, REPLIES, REPLIES, FAILURES, st.sampled_from([Dies(), Bug()]))


def usually(usual: Any, values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """A limit that is seldom tight, so that the others are reached too."""
    return st.one_of(st.just(usual), st.just(usual), values)


LIMITS: st.SearchStrategy[JsonMap] = st.fixed_dictionaries(
    {
        "max_calls_per_session": usually(20, st.integers(1, 9)),
        "max_calls_per_turn": usually(10, st.integers(1, 6)),
        "max_input_tokens_per_session": usually(10**6, st.integers(1_000, 30_000)),
        "max_output_tokens_per_session": usually(10**6, st.integers(20, 6_000)),
        "max_input_tokens_per_turn": usually(None, st.integers(1_000, 20_000)),
        "max_output_tokens_per_turn": usually(None, st.integers(20, 4_500)),
        "max_output_tokens_per_call": st.sampled_from([16, 200, 2_048, 50_000]),
        "max_cost_usd": usually(None, st.floats(0.005, 0.12)),
        "max_steps": usually(None, st.integers(1, 4)),
        "provider_retries": st.integers(0, 2),
        "protocol": st.sampled_from(["text", "native"]),
        "max_failed_tries": st.just(20),
    }
)


@dataclass(frozen=True)
class Paid:
    """One call: what was reserved for it, and what it came to: input and output tokens, USD."""

    purpose: str
    reserved: tuple[int, int, float]
    usage: tuple[int, int, float]


class Provider(CallModel):
    """A user's own model that plays `moves`, then answers. At each call it looks whether the reservation fits.

    `paid` is its own account, in which what the endpoint told is believed. Where something does not fit, `problems` say
    what: an exception here would be one of the endpoint's. `turn` is the first of `paid` that is this turn's.
    """

    def __init__(self, moves: Iterator[Move], entries: Callable[[], list[JsonMap]], limits: JsonMap) -> None:
        self.moves, self.entries, self.limits = moves, entries, limits
        self.paid: list[Paid] = []
        self.problems: list[str] = []
        self.turn = self.turn_entries = 0

    def begin_turn(self) -> None:
        """A person sends a request."""
        self.turn, self.turn_entries = len(self.paid), len(self.entries())

    def complete(self, call: Call, _: Callable[[str], None]) -> ModelReply | ProviderFailure:
        """Make the next move."""
        entries = self.entries()
        mine = entries[-1]
        reserved = (mine["input_tokens"], mine["output_tokens"], mine["cost_usd"])
        self.look(call, entries, reserved)
        move = next(self.moves, Replies("answer"))
        if isinstance(move, Dies):
            self.paid.append(Paid(mine["purpose"], reserved, charge_when_killed(mine, entries[:-1])))
            raise Killed
        if isinstance(move, Bug):
            self.paid.append(Paid(mine["purpose"], reserved, (0, 0, 0.0)))
            raise TypeError("a bug")
        if isinstance(move, Fails):
            received = min(move.received, 2 * call.max_output_tokens * MOST_BYTES_PER_TOKEN)  # the rest is not read
            broke_off = received > 0 and move.kind in {Kind.CONNECTION, Kind.SERVER_ERROR}
            input_tokens = reserved[0] if broke_off or move.kind in PAID_FAILURES else 0
            self.paid.append(
                Paid(mine["purpose"], reserved, counts_and_cost(input_tokens, token_estimate(received), 0))
            )
            return ProviderFailure(kind=move.kind, message="It fails.", retry_after_s=0.0, received_characters=received)
        reply = reply_of(move, call, len(self.paid))
        input_tokens = min(reply.input_tokens, MOST_TOKENS) if reply.input_tokens > 0 else reserved[0]
        written = len(reply.text) + len(reply.refusal) + sum(len(raw_call.arguments) for raw_call in reply.calls)
        output_tokens = min(reply.output_tokens, MOST_TOKENS) if reply.output_tokens > 0 else token_estimate(written)
        cached = max(0, min(reply.cached_tokens, reply.input_tokens, input_tokens))
        self.paid.append(Paid(mine["purpose"], reserved, counts_and_cost(input_tokens, output_tokens, cached)))
        return reply

    def look(self, call: Call, entries: list[JsonMap], reserved: tuple[int, int, float]) -> None:
        """Check that this call was booked, and that its reservation fits into every limit."""
        if entries[-1]["settled_at"] is not None or call.max_output_tokens != reserved[1]:
            self.problems.append(f"call {len(entries)} is not the one that was booked")
        limits, turn = self.limits, self.paid[self.turn :]
        checks = (
            ("max_calls_per_session", len(entries)),
            ("max_calls_per_turn", len(entries) - self.turn_entries),
            ("max_input_tokens_per_session", total(self.paid, 0) + reserved[0]),
            ("max_output_tokens_per_session", total(self.paid, 1) + reserved[1]),
            ("max_input_tokens_per_turn", total(turn, 0) + reserved[0]),
            ("max_output_tokens_per_turn", total(turn, 1) + reserved[1]),
            ("max_output_tokens_per_call", call.max_output_tokens),
            ("max_cost_usd", total(self.paid, 2) + reserved[2] - TINY),
        )
        for name, needed in checks:
            if limits.get(name) is not None and needed > limits[name]:
                self.problems.append(f"{name}: {needed} of {limits[name]} at call {len(entries)}")

    def excess(self, place: int) -> float:
        """The most that one call used beyond its own reservation."""
        return max((paid.usage[place] - paid.reserved[place] for paid in self.paid), default=0)

    def passed(self) -> list[str]:
        """The limits of the session that are exceeded by more than the stated bound."""
        names = ("max_input_tokens_per_session", "max_output_tokens_per_session", "max_cost_usd")
        return [
            name
            for place, name in enumerate(names)
            if (most := self.limits.get(name)) is not None
            and total(self.paid, place) > most + max(0, self.excess(place)) + TINY
        ]


def reply_of(move: Replies, call: Call, number: int) -> ModelReply:
    """The reply in the protocol in which the model was asked."""
    native, text, calls = bool(call.prompt.tools), "", list[RawCall]()
    arguments = json.dumps({"path": "notes.txt", "start_line": number % 40 + 1, "limit": 1})
    if move.form == "call" and native:
        calls = [RawCall(call_id=f"c{number}", tool="read_file", arguments=arguments)]
    elif move.form == "call":
        text = f"tool: read_file({arguments})"
    elif move.form == "malformed":
        text = 'tool: read_file({"path": notes})'
    elif move.form == "answer":
        text = f"All is well, {number}."
    input_tokens = share_of(move.input_share, honest_count(call))
    return ModelReply(
        text=text,
        calls=tuple(calls),
        finish_reason=FinishReason.TOOL_CALLS if calls else FinishReason.STOP,
        refusal="I will not." if move.form == "refused" else "",
        input_tokens=input_tokens,
        output_tokens=share_of(move.output_share, call.max_output_tokens),
        cached_tokens=int(move.cached * max(input_tokens, 0)),
    )


def honest_count(call: Call) -> int:
    """What an endpoint counts whose tokens have 4 bytes."""
    return call.prompt.size // 4 + 4 * len(call.prompt.messages)


def share_of(share: float, of: int) -> int:
    return int(share) if share >= 1_000 else int(share * of)


def token_estimate(characters: int) -> int:
    return -(-characters // 3)


def charge_when_killed(entry: JsonMap, before: list[JsonMap]) -> tuple[int, int, float]:
    """What is charged for a call that its process does not survive: no more than a usual reply, or an ordinary one."""
    replies = [entry_before["output_tokens"] for entry_before in before if entry_before["calls"]]
    usual = sum(replies) // max(1, len(replies))
    input_tokens, most = entry["input_tokens"], entry["output_tokens"]
    output_tokens = min(most, max(usual, LEAST_CUT_OFF))
    return input_tokens, output_tokens, entry["cost_usd"] * (input_tokens + output_tokens) / (input_tokens + most)


def counts_and_cost(input_tokens: int, output_tokens: int, cached: int) -> tuple[int, int, float]:
    return (
        input_tokens,
        output_tokens,
        (input_tokens - cached) * INPUT_USD + cached * CACHED_USD + output_tokens * OUTPUT_USD,
    )


def total(paid: list[Paid], place: int) -> float:
    return sum(call.usage[place] for call in paid)


def book_of(data: Path, thread: str = "") -> list[JsonMap]:
    """The calls of a thread in the spending book, or of all of them."""
    database = sqlite3.connect(data / FILE_NAME)
    database.row_factory = sqlite3.Row
    try:
        query = "SELECT * FROM entries WHERE thread LIKE ? AND purpose NOT IN (?, ?) ORDER BY number"
        return [dict(row) for row in database.execute(query, (f"{thread}%", BEGINNING, TURN))]
    finally:
        database.close()


def run_turns(
    context: AgentContext,
    provider: Provider,
    tasks: int,
    *,
    asynchronous: bool = False,
    durability: Durability = "sync",
) -> list[Outcome]:
    """The outcomes of so many turns of one thread. A process that dies is followed by another, which resumes."""
    outcomes: list[Outcome] = []
    for _ in range(tasks):
        provider.begin_turn()
        play, is_resumed, outcome = _played_async if asynchronous else _played, False, None
        while outcome is None:
            session = Session(context, model=provider, thread_id=Path(context.workspace).name, durability=durability)
            try:
                outcome = play(session, resume=is_resumed)
            except Killed:
                is_resumed = True
        outcomes.append(outcome)
    return outcomes


def _played(session: Session, *, resume: bool) -> Outcome:
    with session:
        list(session.resume() if resume else session.stream("Do it."))
        return session.result().outcome


def _played_async(session: Session, *, resume: bool) -> Outcome:
    async def play() -> Outcome:
        try:
            async for _ in session.aresume() if resume else session.astream("Do it."):
                pass
            return session.result().outcome
        finally:
            await session.aclose()

    return asyncio.run(play())
