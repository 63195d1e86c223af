"""Which server is at work on which run: claims in the shared store with a heartbeat, and how others take them up.

A run whose server was killed is taken up within seconds, as its lock is free; one whose server hangs, or was stopped,
when its heartbeat has been missing for `LONGEST_SILENCE_S`. That server has lost all of its locks then, and ends when
it wakes: before it calls a model, changes a file or writes a checkpoint once more.
"""

import asyncio
import json
import logging
import os
from collections.abc import Awaitable, Callable
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple
from uuid import uuid4

from langgraph.types import Command

from mendgraph.graph.fleet.serving.tenants import Tenants
from mendgraph.nodes.execute_tools.files.deadline import monotonic_s
from mendgraph.nodes.execute_tools.store.database import PostgresUrl, StoreError, open_postgres
from mendgraph.nodes.execute_tools.store.database_schema import IS_HELD, STORE_TABLES, PostgresTables
from mendgraph.nodes.execute_tools.store.run_lock import Owner
from mendgraph.nodes.records import JsonMap

if TYPE_CHECKING:
    from mendgraph.nodes.execute_tools.store.postgres import Locks as StoreLocks

BEAT_S: Final = 1.0
"""How often a server says that it is alive, and looks for runs of those that are not."""

DEAD_S: Final = 3.0
"""After what silence a run is taken up whose lock is free: its server is gone."""

LONGEST_SILENCE_S = 20.0
"""After what silence a run is taken from a server that has its lock still."""

MOST_TRIES: Final = 3
"""How often a run is taken up whose servers die with it, or of it."""

_AT_A_TIME: Final = 4
"""Runs that one server takes up at once: the others take their share."""

_STARTS_S: Final = 30.0
_RUNNING: Final = frozenset({"pending", "running"})

CLAIMS: Final = PostgresTables(
    "claims",
    1,
    (
        """
CREATE TABLE claims (
    run text COLLATE "C" PRIMARY KEY,
    thread text COLLATE "C" NOT NULL,
    owner text NOT NULL,
    request text NOT NULL,
    since text NOT NULL,
    tries bigint NOT NULL,
    server text NOT NULL,
    beat timestamptz NOT NULL DEFAULT now(),
    over boolean NOT NULL DEFAULT false,
    successor text COLLATE "C" NOT NULL DEFAULT ''
)
        """,
        "CREATE INDEX claims_by_thread ON claims (thread)",
    ),
)
"""The engine's runs that are at work, and those that others go on with. `since` is the thread's newest checkpoint
before the run; `over` says that the engine alone has something left to write down."""

_ORPHANS: Final = f"""
SELECT
    run, thread, owner, request, since, tries, server, over, CAST(beat AS text),
    beat < now() - CAST(? AS interval)
FROM claims WHERE successor = '' AND beat < now() - CAST(? AS interval) AND (
    beat < now() - CAST(? AS interval) OR NOT EXISTS (
        SELECT 1 FROM pg_locks, hashtextextended('serving thread ' || thread, 0) AS key WHERE {IS_HELD}
    )
) ORDER BY beat LIMIT {_AT_A_TIME}
"""  # noqa: S608 - our own words

Ask = Callable[..., Awaitable[tuple[int, Any]]]
"""Sends the engine a request of a user: the user's name, the method, the path, the body; status and JSON come back."""


class Locks:
    """Locks by name in the shared store, for all servers of the database; each ends with its process.

    `server` is this process's name among them.
    """

    def __init__(self, url: PostgresUrl) -> None:
        self.url, self.server = url, uuid4().hex

    @cached_property
    def _locks(self) -> "StoreLocks":
        from mendgraph.nodes.execute_tools.store.postgres import Locks as StoreLocks, connections_to

        open_postgres(STORE_TABLES)  # whose functions the locks are taken with
        return StoreLocks(connections_to(self.url))

    def take(self, name: str) -> bool:
        """Whether it is ours now. StoreError where nobody can tell."""
        return self._locks.take(_key(name), Owner(self.server))

    def leave(self, name: str) -> None:
        """Leave it to others."""
        self._locks.release(_key(name))

    def is_held(self, name: str) -> bool:
        """Whether any process has this lock. StoreError where nobody can tell."""
        from mendgraph.nodes.execute_tools.store.postgres import postgres_holder

        return postgres_holder(_key(name)) is not None

    def take_away(self, name: str, server: str) -> None:
        """Take this lock and all others from a server that hangs. StoreError where nobody can tell."""
        from mendgraph.nodes.execute_tools.store.postgres import take_away

        take_away(_key(name), server)


def _key(name: str) -> str:
    """No workspace's name has a blank."""
    return f"serving {name}"


class Claim(NamedTuple):
    """A run and what is needed to go on with it: `request` is the body that it was begun with."""

    run: str
    thread: str
    owner: str
    request: str
    since: str
    tries: int
    server: str = ""
    over: bool = False
    beat: str = ""
    hangs: bool = False


@dataclass
class Asked:
    """A request for a run that is on its way to the engine. `claimed` is set when a server's death loses it no more."""

    request: str
    orphan: Claim | None = None
    claimed: asyncio.Event = field(default_factory=asyncio.Event)

    def given(self, newest: str, given: object) -> object:
        """What the machine is given: of a run that was begun elsewhere what it was given there, or nothing more."""
        if self.orphan is None:
            return given
        if newest != self.orphan.since:
            return None
        body: JsonMap = json.loads(self.request)
        command = body.get("command")
        return Command(resume=command.get("resume")) if command else body.get("input")


ASKED: Final[ContextVar[Asked | None]] = ContextVar("asked", default=None)
"""The request by which the run begins that this task leads to."""


class Claims:
    """The claims of one server. Methods that are not async wait for the database: call them in a thread."""

    def __init__(self, locks: Locks, tenants: Tenants) -> None:
        self._locks, self._tenants = locks, tenants
        self.closing = False
        """Whether the server is ending: its runs are for others then."""
        self._mine: dict[str, Claim] = {}
        self._ended: dict[str, Claim] = {}
        self._taken: dict[str, Claim] = {}
        self._renewed = monotonic_s()

    # --- The runs of this server

    def enter(self, claim: Claim, orphan: Claim | None) -> None:
        """Write down that this server is at work on a run, which goes on with another one where that is an orphan."""
        values = (*claim[:6], self._locks.server)
        with self._database.connection():
            self._database.execute(
                "INSERT INTO claims (run, thread, owner, request, since, tries, server) VALUES (?, ?, ?, ?, ?, ?, ?)",
                values,
            )
            if orphan is not None:
                self._database.execute("UPDATE claims SET successor = ? WHERE run = ?", (claim.run, orphan.run))
        self._mine[claim.run] = claim

    def leave(self, claim: Claim) -> None:
        """Write down that nothing of the run is left to be done, unless the server is ending in the middle of it."""
        self._mine.pop(claim.run, None)
        if not self.closing:
            self._ended[claim.run] = claim
            with suppress(StoreError):  # whoever takes it up finds its end
                self._database.execute("UPDATE claims SET over = true WHERE run = ?", (claim.run,))

    def renew(self) -> None:
        """Say that this server is alive. Where another one has taken a run of its own, this process ends here.

        Raises StoreError: the server cannot be asked.
        """
        runs, now = [*self._mine, *self._ended, *self._taken], monotonic_s()
        if runs:
            self._database.execute(
                "UPDATE claims SET beat = now() WHERE run = ANY(?) AND server = ?", (runs, self._locks.server)
            )
            others = "SELECT run FROM claims WHERE run = ANY(?) AND server <> ?"
            taken = {run for (run,) in self._database.execute(others, (runs, self._locks.server)).fetchall()}
            if not taken.isdisjoint(self._mine):
                logging.getLogger(__name__).critical("Another server has taken up the runs of this one, which ends.")
                os._exit(1)
        self._renewed = now

    def check(self) -> None:
        """Return where nobody can have taken this server's runs meanwhile. Raises StoreError: as `renew`."""
        if monotonic_s() - self._renewed > LONGEST_SILENCE_S / 2:
            self.renew()

    def where(self, run: str) -> tuple[str, Literal["here", "elsewhere", "over"]]:
        """Where the run is at work, or the one that goes on with it, and which that is."""
        while row := self._database.execute("SELECT successor FROM claims WHERE run = ?", (run,)).fetchone():
            if not row[0]:
                return run, "here" if run in self._mine else "elsewhere"
            run = row[0]
        return run, "over"

    def is_claimed(self, thread: str) -> bool:
        """Whether a run of the thread is at work, or waits for a server that takes it up."""
        found = "SELECT 1 FROM claims WHERE thread = ? AND NOT over AND successor = ''"
        return self._database.execute(found, (thread,)).fetchone() is not None

    def forget(self, thread: str) -> None:
        """Forget the runs of a thread that is deleted."""
        self._database.execute("DELETE FROM claims WHERE thread = ?", (thread,))

    def drop(self, run: str) -> None:
        """Forget one run: nobody goes on with it any more."""
        self._database.execute("DELETE FROM claims WHERE run = ?", (run,))

    @property
    def _database(self) -> Any:
        return open_postgres(CLAIMS)

    # --- The runs of others

    async def keep(self, ask: Ask) -> None:
        """Beat, and take up what others have left, until this is cancelled."""
        await asyncio.gather(self._often(self._beat), self._often(self._look, ask))

    async def _often(self, work: Callable[..., Awaitable[None]], *given: Any) -> None:
        while True:
            try:
                await work(*given)
            except Exception:  # whatever it is, the other runs need their heartbeat
                logging.getLogger(__name__).exception("The runs of other servers could not be looked after.")
            await asyncio.sleep(BEAT_S)

    async def _beat(self) -> None:
        await asyncio.to_thread(self.renew)

    async def _look(self, ask: Ask) -> None:
        for claim in [*self._ended.values()]:
            if await self._is_written(claim, ask):
                self._ended.pop(claim.run)
                await asyncio.to_thread(self.drop, claim.run)
        for orphan in await asyncio.to_thread(self._orphans):
            await self._take_up(orphan, ask)

    def _orphans(self) -> list[Claim]:
        silence = f"{LONGEST_SILENCE_S} s"
        rows = self._database.execute(_ORPHANS, (silence, f"{DEAD_S} s", silence)).fetchall()
        return [Claim(*row) for row in rows]

    async def _take_up(self, orphan: Claim, ask: Ask) -> None:
        """Go on with a run in one of our own, if nobody else does."""
        if not await asyncio.to_thread(self._take, orphan):
            return
        runs, asked = f"/threads/{orphan.thread}/runs", Asked(orphan.request, orphan)
        try:
            tenant = self._tenants.users.get(orphan.owner)
            if tenant is None or (orphan.over and await self._is_written(orphan, ask)):
                await asyncio.to_thread(self.drop, orphan.run)
                return
            places = (f"run {number} of {orphan.owner}" for number in range(tenant.runs_at_once))
            if await asyncio.to_thread(lambda: all(map(self._locks.is_held, places))):
                return
            await ask(orphan.owner, "POST", f"{runs}/{orphan.run}/cancel")  # it ends in the engine's list
            if orphan.tries >= MOST_TRIES:
                await asyncio.to_thread(self.drop, orphan.run)
                return
            ASKED.set(asked)
            body = {**json.loads(orphan.request), "input": {}, "command": None}
            status, _ = await ask(orphan.owner, "POST", runs, body)
            if status < 400:
                with suppress(TimeoutError):
                    await asyncio.wait_for(asked.claimed.wait(), _STARTS_S)
            elif status == 404:  # the thread is deleted
                await asyncio.to_thread(self.drop, orphan.run)
        finally:
            self._taken.pop(orphan.run)

    def _take(self, orphan: Claim) -> bool:
        """Whether we have been the first. What a server has that hangs is taken from it."""
        first = self._database.execute(
            "UPDATE claims SET server = ?, beat = now() WHERE run = ? AND server = ? AND beat = CAST(? AS timestamptz)"
            " RETURNING run",
            (self._locks.server, orphan.run, orphan.server, orphan.beat),
        ).fetchone()
        if first is None:
            return False
        self._taken[orphan.run] = orphan
        if orphan.hangs and not orphan.over:
            self._locks.take_away(f"thread {orphan.thread}", orphan.server)
        return True

    async def _is_written(self, claim: Claim, ask: Ask) -> bool:
        """Whether the engine has written down how the run ended."""
        status, run = await ask(claim.owner, "GET", f"/threads/{claim.thread}/runs/{claim.run}")
        return bool(status == 404 or (status == 200 and run["status"] not in _RUNNING))
