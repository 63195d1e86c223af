"""Which server is at work on which run: locks and claims in the shared store, and how others take them up.

A run whose server was killed is taken up within seconds, as its lock is free; one whose server hangs, or was stopped,
when its heartbeat has been missing for `LONGEST_SILENCE_S`. That server has lost all of its locks then, and ends when
it wakes: before it calls a model, changes a file or writes a checkpoint once more.
"""

import asyncio
import json
import logging
import math
import os
from collections.abc import Awaitable, Callable
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple
from uuid import uuid4

from mendgraph.graph.fleet.serving.tenants import Tenants
from mendgraph.nodes.execute_tools.files.deadline import monotonic_s
from mendgraph.nodes.execute_tools.store.database import PostgresUrl, StoreError, open_postgres
from mendgraph.nodes.execute_tools.store.database_schema import IS_HELD, STORE_TABLES, PostgresTables
from mendgraph.nodes.execute_tools.store.run_lock import Owner

if TYPE_CHECKING:
    from mendgraph.nodes.execute_tools.store.postgres import Locks as StoreLocks

BEAT_S: Final = 1.0
DEAD_S: Final = 3.0
LONGEST_SILENCE_S: Final = 20.0
"""How often a server says that it is alive; after what silence a run is taken up whose lock is free; after what silence
it is taken from a server that has its lock still."""

MOST_TRIES: Final = 3
"""How often a run is taken up whose servers die with it, or of it."""

_LOG: Final = logging.getLogger(__name__)
_RUNNING: Final = frozenset({"pending", "running", "busy"})
_TABLE: Final = """
CREATE TABLE claims (
    run text COLLATE "C" PRIMARY KEY,
    thread text COLLATE "C" NOT NULL,
    owner text NOT NULL,
    request text NOT NULL,
    tries bigint NOT NULL,
    server text NOT NULL,
    beat timestamptz NOT NULL DEFAULT now(),
    over boolean NOT NULL DEFAULT false,
    successor text COLLATE "C" NOT NULL DEFAULT ''
)
"""
_CLAIMS: Final = PostgresTables("claims", 1, (_TABLE, "CREATE INDEX claims_by_thread ON claims (thread)"))
"""The engine's runs that are at work, and those that another one goes on with, its `successor`. Of those that are
`over` the engine alone has something left to write down."""

_ORPHANS: Final = f"""
SELECT run, thread, owner, request, tries, over, server, CAST(beat AS text)
FROM claims WHERE successor = '' AND beat < now() - CAST(? AS interval) AND (
    beat < now() - CAST(? AS interval) OR NOT EXISTS (
        SELECT 1 FROM pg_locks, hashtextextended('serving thread ' || thread, 0) AS key WHERE {IS_HELD}
    )
) ORDER BY beat LIMIT 4
"""  # noqa: S608 - our own words
"""A few at once: the other servers take their share."""


Ask = Callable[..., Awaitable[tuple[int, Any]]]
"""Sends the engine a request: the user, the method, the path, the body. Status and JSON come back."""


class Locks:
    """Locks by name in the shared store, for all servers of the database; each ends with its process, the `server`."""

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
        """Free this lock if this server has it, and whatever else it has: it hangs. StoreError where nobody can."""
        self._locks.take_away(_key(name), server)


def _key(name: str) -> str:
    """No workspace's name has a blank."""
    return f"serving {name}"


class Claim(NamedTuple):
    """A run of the engine, and the body of the request that it was begun with."""

    run: str
    thread: str
    owner: str
    request: str
    tries: int = 0
    over: bool = False
    server: str = ""
    beat: str = ""


@dataclass
class Asked:
    """A request for a run, on its way through the engine; with an `orphan` we ask, to go on with that one.

    `stored` is set when the run is claimed, and what it was asked is in the store.
    """

    request: str
    orphan: Claim | None = None
    stored: asyncio.Event = field(default_factory=asyncio.Event)


ASKED: Final[ContextVar[Asked | None]] = ContextVar("asked", default=None)
"""That of this task, which ends in the machine."""


class Claims:
    """The claims of one server. Methods that are not async wait for the database: call them in a thread.

    `closing` says that the server ends, so that its runs are for others. StoreError: the database cannot be asked.
    """

    def __init__(self, locks: Locks, tenants: Tenants) -> None:
        self._locks, self._tenants, self.closing = locks, tenants, False
        self._mine, self._taken = set[str](), set[str]()
        self._renewed, self._failed = monotonic_s(), -math.inf

    def enter(self, claim: Claim, orphan: Claim | None) -> None:
        """Write down that this server is at work on a run, which goes on with the orphan."""
        new = "INSERT INTO claims (run, thread, owner, request, tries, server) VALUES (?, ?, ?, ?, ?, ?)"
        with self._database.connection():
            self._run(new, *claim[:5], self._locks.server)
            if orphan is not None:
                self._run("UPDATE claims SET successor = ? WHERE run = ?", claim.run, orphan.run)
        self._mine.add(claim.run)

    def leave(self, run: str) -> None:
        """Write down that the machine has done with the run, unless it is the server that ends."""
        self._mine.discard(run)
        if not self.closing:
            with suppress(StoreError):  # it is taken up once the database is there again
                self.cancel(run)

    def written(self, run: str, task: "asyncio.Task[Any]") -> None:
        """Forget a run that is over, once the engine's own `task` has ended: its books say so as well."""

        def forget() -> None:
            with suppress(StoreError):
                self._run("DELETE FROM claims WHERE run = ? AND over", run)

        if task.cancelled() or task.exception() is None:
            asyncio.get_running_loop().run_in_executor(None, forget)

    def renew(self) -> None:
        """Say that this server is alive. Where another one has taken a run of its own, this process ends here."""
        runs, now = [*self._mine, *self._taken], monotonic_s()
        if runs:
            self._run("UPDATE claims SET beat = now() WHERE run = ANY(?) AND server = ?", runs, self._locks.server)
            lost = self._run("SELECT run FROM claims WHERE run = ANY(?) AND server <> ?", runs, self._locks.server)
            if not self._mine.isdisjoint(run for (run,) in lost):
                _LOG.critical("This server did not answer for so long that another one has taken up its runs: it ends.")
                os._exit(1)
        self._renewed = now

    def check(self) -> None:
        """Return where nobody can have taken this server's runs meanwhile."""
        if monotonic_s() - self._renewed > LONGEST_SILENCE_S / 2:
            self.renew()

    def where(self, run: str) -> tuple[str, Literal["here", "elsewhere", "over"]]:
        """Where the run is at work, or the one that goes on with it, and which that is."""
        while found := self._run("SELECT successor FROM claims WHERE run = ?", run):
            if not found[0][0]:
                return run, "here" if run in self._mine else "elsewhere"
            run = found[0][0]
        return run, "over"

    def is_busy(self, thread: str) -> bool:
        """Whether a run of the thread is at work, or waits for a server that takes it up."""
        claimed = "SELECT 1 FROM claims WHERE thread = ? AND NOT over AND successor = ''"
        return bool(self._run(claimed, thread)) or self._locks.is_held(f"thread {thread}")

    def cancel(self, run: str) -> None:
        """See to it that nobody takes the run up any more."""
        self._run("UPDATE claims SET over = true WHERE run = ?", run)

    def forget(self, thread: str) -> None:
        """Forget the runs of a thread that is deleted."""
        self._run("DELETE FROM claims WHERE thread = ?", thread)

    @cached_property
    def _database(self) -> Any:
        return open_postgres(_CLAIMS)

    def _run(self, statement: str, *values: Any) -> list[Any]:
        cursor = self._database.execute(statement, values)
        return list(cursor.fetchall()) if cursor.description else []

    # --- The runs of others

    async def keep(self, ask: Ask) -> None:
        """Beat, and take up what others have left, until this is cancelled."""

        async def often(work: Callable[[], Awaitable[object]]) -> None:
            while True:
                try:
                    await work()
                except Exception:  # noqa: BLE001 - whatever it is, the other runs need their heartbeat
                    self._failed = monotonic_s()
                    _LOG.exception("The runs of this and other servers could not be looked after.")
                await asyncio.sleep(BEAT_S)

        await asyncio.gather(often(lambda: asyncio.to_thread(self.renew)), often(lambda: self.look(ask)))

    async def look(self, ask: Ask) -> None:
        """Take up runs whose server is gone, once."""
        if monotonic_s() - self._failed < 2 * DEAD_S:
            return  # the database was away: those that live have to say so first
        silence = f"{LONGEST_SILENCE_S} s"
        for row in await asyncio.to_thread(self._run, _ORPHANS, f"{DEAD_S} s", silence):
            orphan = Claim(*row)
            if await asyncio.to_thread(self._take, orphan):
                try:
                    if await self._take_up(orphan, ask):
                        await asyncio.to_thread(self._run, "DELETE FROM claims WHERE run = ?", orphan.run)
                finally:
                    self._taken.remove(orphan.run)

    def _take(self, orphan: Claim) -> bool:
        """Whether we have been the first. A server that hangs loses its locks."""
        first = self._run(
            "UPDATE claims SET server = ?, beat = now() WHERE run = ? AND server = ? AND beat = CAST(? AS timestamptz)"
            " RETURNING run",
            *(self._locks.server, orphan.run, orphan.server, orphan.beat),
        )
        if first:
            self._taken.add(orphan.run)
            if not orphan.over:
                self._locks.take_away(f"thread {orphan.thread}", orphan.server)
        return bool(first)

    async def _take_up(self, orphan: Claim, ask: Ask) -> bool:
        """Go on with a run in one of our own, as the engine's runs end with their server; whether nobody ever will."""
        tenant, runs = self._tenants.users.get(orphan.owner), f"/threads/{orphan.thread}/runs"
        if orphan.over and await _is_written(orphan, ask):
            return True
        places = [f"run {number} of {orphan.owner}" for number in range(tenant.runs_at_once if tenant else 0)]
        thread = f"thread {orphan.thread}"
        if await asyncio.to_thread(lambda: self._locks.is_held(thread) or all(map(self._locks.is_held, places))):
            return False  # another server knows the user, or there is room once another run has ended
        await ask(orphan.owner, "POST", f"{runs}/{orphan.run}/cancel")  # it ends in the engine's list
        status, asked = 404, Asked(orphan.request, orphan)
        if orphan.tries < MOST_TRIES:
            ASKED.set(asked)
            status, _ = await ask(orphan.owner, "POST", runs, {**json.loads(orphan.request), "input": {}})
        if status < 400:
            await asyncio.wait_for(asked.stored.wait(), LONGEST_SILENCE_S)
        return 400 <= status < 500  # after the server's own failures it is tried again


async def _is_written(claim: Claim, ask: Ask) -> bool:
    """Whether the engine has written down how the run ended, and then, that its thread is free: two transactions."""
    for path in (f"/threads/{claim.thread}/runs/{claim.run}", f"/threads/{claim.thread}"):
        status, found = await ask(claim.owner, "GET", path)
        if status != 404 and (status != 200 or found["status"] in _RUNNING):
            return False
    return True
