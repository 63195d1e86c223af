"""What we read from the engine's tables, and what holds in them, whichever version it is.

Each server holds one lock of the store as long as it lives. A run is written down with its server in the very
transaction in which the engine writes it down; when that lock is free, nobody works on the run any more, and it is
ended here. What may not be is refused in the transaction that writes it, so that it is refused for all servers.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

from sqlalchemy import event, text
from sqlalchemy.ext.asyncio import AsyncSession

from mendgraph.graph.fleet.serving.locks import PostgresLocks
from mendgraph.nodes.execute_tools.store.database import StoreError

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine

LOOK_EVERY_S: Final = 2.0
"""How often a server looks for runs of others that are gone, and for its own that somebody has cancelled elsewhere.

A request about a thread looks at that one at once.
"""

LAST_S: Final = 10.0
"""Seconds that runs at work have to end by themselves when their server is told to end; then they are cut off."""

_CUT_OFF_S: Final = 5.0
"""Seconds to write down that they were."""

LOST: Final = (
    "The server that this run was on is gone. What it had done is kept: go on with a run without input, or send the"
    " next request."
)

_TABLE: Final = "mendgraph_run_servers"
_MAKE: Final = (
    "SELECT pg_advisory_xact_lock(7301118)",  # of servers that start at once one makes it
    f"CREATE TABLE IF NOT EXISTS {_TABLE} (run_id text PRIMARY KEY, server text NOT NULL)",
)
_WRITE: Final = text(f"INSERT INTO {_TABLE} (run_id, server) VALUES (:run, :server) ON CONFLICT (run_id) DO NOTHING")  # noqa: S608
_AT_WORK: Final = text(
    f"SELECT r.run_id, r.thread_id, r.user_id, s.server FROM runs r JOIN {_TABLE} s ON s.run_id = r.run_id"  # noqa: S608
    " WHERE r.status IN ('pending', 'running') AND (CAST(:thread AS text) IS NULL OR r.thread_id = :thread)"
)
_END: Final = text(
    "UPDATE runs SET status = 'error', error_message = :said, updated_at = now()"
    " WHERE run_id = :run AND status IN ('pending', 'running') RETURNING run_id"
)
_FREE_THREAD: Final = text(
    "UPDATE thread SET status = :status, updated_at = now() WHERE thread_id = :thread"
    " AND NOT EXISTS (SELECT 1 FROM runs WHERE thread_id = :thread AND status IN ('pending', 'running'))"
)
_OWNER: Final = text(
    "SELECT COALESCE((SELECT user_id FROM thread WHERE thread_id = :thread),"
    " (SELECT '' FROM checkpoints WHERE thread_id = :thread LIMIT 1))"
)
_STATUS: Final = text(
    "SELECT status, error_message FROM runs WHERE thread_id = :thread AND (:run = '' OR run_id = :run)"
    " ORDER BY created_at DESC LIMIT 1"
)
_NO_RESULT: Final = {
    "running": "The run is still at work: look at the thread's state, or join the run at the server that has it.",
    "interrupted": "The run was cancelled. Go on with a run without input, or send the next request.",
    "error": "The run failed. Go on with a run without input, or send the next request.",
}
_OVER: Final = text(
    f"SELECT s.run_id FROM {_TABLE} s LEFT JOIN runs r ON r.run_id = s.run_id"  # noqa: S608
    " WHERE s.server = :server AND (r.status IS NULL OR r.status NOT IN ('pending', 'running'))"
)
_FORGET: Final = text(f"DELETE FROM {_TABLE} WHERE run_id = :run")  # noqa: S608


_OWNER_NOW: Final = text("SELECT user_id FROM thread WHERE thread_id = :thread FOR UPDATE")
_IS_BUSY: Final = text(
    "SELECT EXISTS (SELECT 1 FROM runs WHERE thread_id = :thread AND run_id <> :run"
    " AND status IN ('pending', 'running'))"
)
_HAS_EVENTS: Final = text("SELECT to_regclass('run_events') IS NOT NULL")
_FORGET_EVENTS: Final = text(
    "DELETE FROM run_events WHERE run_id IN (SELECT run_id FROM runs WHERE thread_id = :thread)"
)
_FORGET_THREAD: Final = tuple(
    text(f"DELETE FROM {table} WHERE thread_id = :thread")  # noqa: S608 - these three names
    for table in ("checkpoint_writes", "checkpoint_blobs", "checkpoints")
)


class EngineThreads:
    """What Aegra's tables say of threads and runs."""

    def __init__(self, locks: PostgresLocks) -> None:
        self._locks, self._server = locks, uuid4().hex

    @asynccontextmanager
    async def watching(self) -> AsyncIterator[None]:
        """Keep the rules, write down this process's runs, and end those of others that are gone, until the block ends.

        In a thread there is one run at once, of the thread's user, and nothing is left of a thread that is deleted.
        """
        from aegra_api.core.orm import Run, Thread  # type: ignore[import-untyped, unused-ignore]

        def write(_mapper: Any, connection: Any, run: Any) -> None:
            connection.execute(_WRITE, {"run": run.run_id, "server": self._server})

        await asyncio.to_thread(self._locks.take, self._presence)
        async with _engine().begin() as connection:
            for statement in _MAKE:
                await connection.execute(text(statement))
        rules = ((Run, "before_insert", may_begin), (Run, "after_insert", write), (Thread, "before_delete", forget))
        with ExitStack() as kept:
            for rule in rules:
                event.listen(*rule)
                kept.callback(event.remove, *rule)
            await self.end_lost()
            watch = asyncio.create_task(self._watch())
            try:
                yield
            finally:
                watch.cancel()
                with suppress(asyncio.CancelledError):
                    await watch

    async def owner(self, thread: str) -> str | None:
        """Whose thread this is, "" for nobody's any more, None where there is none."""
        async with _engine().connect() as connection:
            found = await connection.scalar(_OWNER, {"thread": thread})
        return None if found is None else str(found)

    async def is_busy(self, thread: str) -> bool:
        """Whether a run of this thread is at work on a server that is there."""
        return await self.end_lost(thread) or await self._is_held(f"thread {thread}")

    async def is_elsewhere(self, thread: str, run: str) -> bool:
        """Whether this run is at work on another server that is there: nobody can follow it here."""
        async with _engine().connect() as connection:
            rows = [tuple(row) for row in await connection.execute(_AT_WORK, {"thread": thread})]
        others = [server for its, _thread, _user, server in rows if its == run and server != self._server]
        return bool(others) and await self._is_there(others[0])

    async def failure(self, thread: str, run: str) -> dict[str, str] | None:
        """Why this run, or the thread's last one, has no result: `error` and `message`. None where it has one."""
        async with _engine().connect() as connection:
            found = (await connection.execute(_STATUS, {"thread": thread, "run": run})).first()
        status, said = found or ("success", None)
        if status == "success":
            return None
        return {"error": "Error", "message": str(said or _NO_RESULT.get(status, _NO_RESULT["running"]))}

    async def end_lost(self, thread: str | None = None) -> bool:
        """End the runs of servers that are gone, of one thread or of all; whether others are at work."""
        async with _engine().connect() as connection:
            rows = [tuple(row) for row in await connection.execute(_AT_WORK, {"thread": thread})]
        alive = {server: await self._is_there(server) for server in {row[3] for row in rows}}
        for run, its_thread, _user, server in rows:
            if not alive[server]:
                await _end(run, its_thread)
        return any(alive[row[3]] for row in rows)

    @property
    def _presence(self) -> str:
        return f"server {self._server}"

    async def _is_there(self, server: str) -> bool:
        return server == self._server or await self._is_held(f"server {server}")

    async def _is_held(self, name: str) -> bool:
        return await asyncio.to_thread(self._locks.is_held, name)

    async def _watch(self) -> None:
        from sqlalchemy.exc import SQLAlchemyError

        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            with suppress(SQLAlchemyError, OSError, StoreError):  # the database is away: it is asked again
                await asyncio.to_thread(self._locks.keep, self._presence)
                await self.end_lost()
                await self._stop_cancelled()

    async def _stop_cancelled(self) -> None:
        """End our runs that are over in the engine's tables and still at work: another server was told to end them."""
        tasks = _tasks()
        async with _engine().begin() as connection:
            over = [str(row[0]) for row in await connection.execute(_OVER, {"server": self._server})]
            for run in over:
                task = tasks.get(run)
                if task is not None and not task.done():
                    task.cancel()
                else:
                    await connection.execute(_FORGET, {"run": run})


async def finish_runs() -> None:
    """Let this process's runs end, or cut them off; either is written down, and what was cut off can go on."""
    tasks = [task for task in _tasks().values() if not task.done()]
    if tasks:
        _, late = await asyncio.wait(tasks, timeout=LAST_S)
        for task in late:
            task.cancel()
        if late:
            await asyncio.wait(late, timeout=_CUT_OFF_S)


async def _end(run: str, thread: str) -> None:
    """Say of a run that it is over, and of its thread what it is now."""
    status = "interrupted" if await _is_asking(thread) else "error"
    async with _engine().begin() as connection:
        if await connection.scalar(_END, {"run": run, "said": LOST}):
            await connection.execute(_FORGET, {"run": run})
            await connection.execute(_FREE_THREAD, {"thread": thread, "status": status})


async def _is_asking(thread: str) -> bool:
    """Whether the last thing that the run did was to ask a person."""
    from aegra_api.core.database import db_manager  # type: ignore[import-untyped, unused-ignore]

    from mendgraph.graph.fleet.serving.agent import graph

    machine = graph.copy({"checkpointer": db_manager.get_checkpointer()})
    found = await machine.aget_state({"configurable": {"thread_id": thread}})
    return bool(found.interrupts)


def _tasks() -> "dict[str, asyncio.Task[Any]]":
    """The runs at work in this process, by id, where this version of the engine has them."""
    try:
        from aegra_api.core.active_runs import active_runs  # type: ignore[import-untyped, unused-ignore]
    except ImportError:
        from aegra_api.api.runs import active_runs  # type: ignore[import-untyped, unused-ignore]
    tasks: dict[str, asyncio.Task[Any]] = active_runs
    return tasks


def _engine() -> "AsyncEngine":
    from aegra_api.core.database import db_manager  # type: ignore[import-untyped, unused-ignore]

    engine: AsyncEngine = db_manager.get_engine()
    return engine


# --- What holds in its tables


def may_begin(_mapper: Any, connection: Any, run: Any) -> None:
    """Refuse a run in somebody else's thread, or beside another one. The thread's row is ours until it is written.

    Raises:
        HTTPException: 404 or 409, which the engine answers with.
    """
    from starlette.exceptions import HTTPException

    asked = {"thread": run.thread_id, "run": run.run_id}
    if connection.scalar(_OWNER_NOW, asked) != run.user_id:
        raise HTTPException(404, f"There is no thread {run.thread_id}.")
    if connection.scalar(_IS_BUSY, asked):
        raise HTTPException(409, f"A run of the thread {run.thread_id} is at work: wait for it, or cancel it.")


def forget(_mapper: Any, connection: Any, thread: Any) -> None:
    """Delete what the checkpointer and the streams hold of a thread: not every version of the engine does."""
    events = (_FORGET_EVENTS,) if connection.scalar(_HAS_EVENTS) else ()
    for statement in (*events, *_FORGET_THREAD):
        connection.execute(statement, {"thread": thread.thread_id})


def hide_values() -> None:
    """Name no values where a statement fails: they are what people asked, and errors are logged."""
    from aegra_api.core.database import db_manager  # type: ignore[import-untyped, unused-ignore]

    db_manager.get_engine().sync_engine.hide_parameters = True


class BriefSession(AsyncSession):
    """Gives its connection back after each question.

    Otherwise whoever follows a run holds one as long as that lasts, and some of them hold all that there are.
    """

    async def scalar(self, *given: Any, **options: Any) -> Any:
        """What the question says; what was read stays readable."""
        found = await super().scalar(*given, **options)
        await self.commit()
        return found


async def brief_session() -> AsyncIterator[AsyncSession]:
    """The engine's `get_session`, with sessions of ours."""
    from aegra_api.core.database import db_manager  # type: ignore[import-untyped, unused-ignore]

    async with BriefSession(db_manager.get_engine(), expire_on_commit=False) as session:
        yield session


def shorten_sessions(app: Any) -> None:
    """Put them in, where this version of the engine holds a connection as long as a request lasts."""
    from aegra_api.core import orm  # type: ignore[import-untyped, unused-ignore]

    if not hasattr(orm, "get_session_maker"):  # newer versions have it, and open their sessions where they need them
        app.dependency_overrides[orm.get_session] = brief_session
