"""What holds in the engine's tables, whichever version it is: checked in the very transaction that writes a row.

What the door asks before may be otherwise a moment later; what is refused here is refused for all servers.
"""

from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any, Final

from sqlalchemy import event, text
from sqlalchemy.ext.asyncio import AsyncSession

_OWNER: Final = text("SELECT user_id FROM thread WHERE thread_id = :thread FOR UPDATE")
_IS_BUSY: Final = text(
    "SELECT EXISTS (SELECT 1 FROM runs WHERE thread_id = :thread AND run_id <> :run"
    " AND status IN ('pending', 'running'))"
)
_HAS_EVENTS: Final = text("SELECT to_regclass('run_events') IS NOT NULL")
_FORGET_EVENTS: Final = text(
    "DELETE FROM run_events WHERE run_id IN (SELECT run_id FROM runs WHERE thread_id = :thread)"
)
_FORGET: Final = tuple(
    text(f"DELETE FROM {table} WHERE thread_id = :thread")  # noqa: S608 - these three names
    for table in ("checkpoint_writes", "checkpoint_blobs", "checkpoints")
)


@contextmanager
def kept_rules() -> Iterator[None]:
    """Until the block ends: one run at once in a thread, of the thread's user, and nothing is left of a deleted one."""
    from aegra_api.core.orm import Run, Thread  # type: ignore[import-untyped, unused-ignore]

    rules = ((Run, "before_insert", may_begin), (Thread, "before_delete", forget))
    for rule in rules:
        event.listen(*rule)
    try:
        yield
    finally:
        for rule in rules:
            event.remove(*rule)


def may_begin(_mapper: Any, connection: Any, run: Any) -> None:
    """Refuse a run in somebody else's thread, or beside another one. The thread's row is ours until it is written.

    Raises:
        HTTPException: 404 or 409, which the engine answers with.
    """
    from starlette.exceptions import HTTPException

    asked = {"thread": run.thread_id, "run": run.run_id}
    if connection.scalar(_OWNER, asked) != run.user_id:
        raise HTTPException(404, f"There is no thread {run.thread_id}.")
    if connection.scalar(_IS_BUSY, asked):
        raise HTTPException(409, f"A run of the thread {run.thread_id} is at work: wait for it, or cancel it.")


def forget(_mapper: Any, connection: Any, thread: Any) -> None:
    """Delete what the checkpointer and the streams hold of a thread: not every version of the engine does."""
    events = (_FORGET_EVENTS,) if connection.scalar(_HAS_EVENTS) else ()
    for statement in (*events, *_FORGET):
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
