"""What is refused where a row is written, what a deleted thread leaves behind, and runs of servers that are gone."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import create_async_engine
from starlette.exceptions import HTTPException

from mendgraph.graph.fleet.serving import engine_tables
from mendgraph.graph.fleet.serving.engine import connection_variables
from mendgraph.graph.fleet.serving.engine_tables import LOST, BriefSession, EngineThreads, forget, may_begin
from mendgraph.graph.fleet.serving.locks import PostgresLocks
from mendgraph.nodes.execute_tools.store.postgres_connections import close_all
from mendgraph.nodes.execute_tools.store.postgres_url import read_url


@contextmanager
def engine_database(url: str, patch: pytest.MonkeyPatch, tables: str) -> Iterator[psycopg.Connection[Any]]:
    """These tables at `url`, which is told as the engine is told it."""
    for name, value in connection_variables(url).items():
        patch.setenv(name, value)
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(tables)
        yield connection


TABLES = """
CREATE TABLE thread (thread_id text PRIMARY KEY, user_id text);
CREATE TABLE runs (run_id text PRIMARY KEY, thread_id text, status text);
CREATE TABLE run_events (run_id text);
CREATE TABLE checkpoints (thread_id text);
CREATE TABLE checkpoint_blobs (thread_id text);
CREATE TABLE checkpoint_writes (thread_id text);
INSERT INTO thread VALUES ('idle', 'ann'), ('busy', 'ann');
INSERT INTO runs VALUES ('r1', 'idle', 'success'), ('r2', 'busy', 'pending');
INSERT INTO run_events VALUES ('r1'), ('r2');
INSERT INTO checkpoints VALUES ('idle'), ('busy');
INSERT INTO checkpoint_blobs VALUES ('idle'), ('busy');
INSERT INTO checkpoint_writes VALUES ('idle'), ('busy');
"""
"""What of the engine's tables is read and written."""


@pytest.fixture
def database(shared_store: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[psycopg.Connection[Any]]:
    with engine_database(shared_store, monkeypatch, TABLES) as connection:
        yield connection


@pytest.mark.parametrize(
    ("thread", "run", "user", "status"),
    [
        ("idle", "r3", "ann", 0),
        ("busy", "r2", "ann", 0),
        ("busy", "r3", "ann", 409),
        ("idle", "r3", "bob", 404),
        ("nowhere", "r3", "ann", 404),
    ],
)
@pytest.mark.usefixtures("database")
def test_one_run_at_once_of_the_threads_own_user(thread: str, run: str, user: str, status: int) -> None:
    engine = create_engine("postgresql+psycopg://")
    asked = SimpleNamespace(thread_id=thread, run_id=run, user_id=user)
    try:
        with engine.begin() as connection:
            may_begin(None, connection, asked)
        found = 0
    except HTTPException as refused:
        found = refused.status_code
    engine.dispose()
    assert found == status


@pytest.mark.parametrize("has_events", [True, False])
def test_nothing_is_left_of_a_deleted_thread(database: psycopg.Connection[Any], *, has_events: bool) -> None:
    if not has_events:
        database.execute("DROP TABLE run_events")
    engine = create_engine("postgresql+psycopg://")
    with engine.begin() as connection:
        forget(None, connection, SimpleNamespace(thread_id="idle"))
    engine.dispose()
    for table in ("checkpoints", "checkpoint_blobs", "checkpoint_writes"):
        assert database.execute(f"SELECT * FROM {table}").fetchall() == [("busy",)]  # noqa: S608 - these three names
    if has_events:
        assert database.execute("SELECT * FROM run_events").fetchall() == [("r2",)]


@pytest.mark.usefixtures("database")
def test_a_session_holds_no_connection_between_questions() -> None:
    async def play() -> None:
        engine = create_async_engine("postgresql+asyncpg://", pool_size=1, max_overflow=0, pool_timeout=0.1)
        async with BriefSession(engine) as first, BriefSession(engine) as second:
            for session in (first, second, first):
                assert await session.scalar(text("SELECT user_id FROM thread WHERE thread_id = 'idle'")) == "ann"
        await engine.dispose()

    asyncio.run(play())


RUN_TABLES = """
CREATE TABLE thread (thread_id text PRIMARY KEY, user_id text, status text, updated_at timestamptz);
CREATE TABLE runs (run_id text PRIMARY KEY, thread_id text, user_id text, status text, error_message text,
                   created_at timestamptz DEFAULT now(), updated_at timestamptz);
CREATE TABLE checkpoints (thread_id text);
INSERT INTO checkpoints VALUES ('t1'), ('deleted');
INSERT INTO thread VALUES ('t1', 'ann', 'busy'), ('t2', 'bob', 'busy');
INSERT INTO runs (run_id, thread_id, user_id, status)
VALUES ('mine', 't1', 'ann', 'running'), ('lost', 't2', 'bob', 'pending'), ('old', 't2', 'bob', 'success');
"""
"""What of Aegra's tables is read and written."""


@pytest.fixture
def runs_database(shared_store: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[psycopg.Connection[Any]]:
    """The engine's database, as an operator sees it."""
    with engine_database(shared_store, monkeypatch, RUN_TABLES) as connection:
        yield connection
    close_all()


def play(shared_store: str, monkeypatch: pytest.MonkeyPatch, work: Callable[..., Awaitable[None]]) -> None:
    """Run this on one server, with a second pair of locks for another one."""
    from sqlalchemy.ext.asyncio import create_async_engine

    async def played() -> None:
        engine = create_async_engine("postgresql+asyncpg://")
        monkeypatch.setattr(engine_tables, "_engine", lambda: engine)
        mine, others = PostgresLocks(read_url(shared_store)), PostgresLocks(read_url(shared_store))
        try:
            await work(EngineThreads(mine), mine, others)
        finally:
            mine.close()
            others.close()
            await engine.dispose()

    asyncio.run(played())


def written(runs_database: psycopg.Connection[Any], server: str) -> None:
    runs_database.execute("DELETE FROM mendgraph_run_servers")
    runs_database.execute(
        "INSERT INTO mendgraph_run_servers VALUES ('mine', %s), ('lost', 'gone'), ('old', 'gone')", [server]
    )


@pytest.mark.parametrize(("asking", "status"), [(False, "error"), (True, "interrupted")])
def test_a_run_ends_with_its_server(
    shared_store: str,
    runs_database: psycopg.Connection[Any],
    monkeypatch: pytest.MonkeyPatch,
    *,
    asking: bool,
    status: str,
) -> None:
    async def is_asking(_thread: str) -> bool:
        return asking

    async def work(threads: EngineThreads, _mine: PostgresLocks, others: PostgresLocks) -> None:
        async with threads.watching():
            written(runs_database, threads._server)
            await asyncio.to_thread(others.take, "server gone")
            assert await threads.end_lost()
            assert (await threads.is_busy("t1"), await threads.is_busy("t2")) == (True, True)
            others.leave("server gone")
            assert (await threads.is_busy("t2"), await threads.owner("t2"), await threads.owner("t3")) == (
                *(False, "bob"),
                None,
            )
            assert not await threads.is_elsewhere("t2", "lost")
            runs_database.execute("UPDATE mendgraph_run_servers SET server = 'other' WHERE run_id = 'mine'")
            await asyncio.to_thread(others.take, "server other")
            assert [await threads.is_elsewhere("t1", run) for run in ("mine", "old")] == [True, False]
            runs_database.execute(
                "UPDATE mendgraph_run_servers SET server = %s WHERE run_id = 'mine'", [threads._server]
            )
            assert not await threads.is_elsewhere("t1", "mine")
            others.take("thread t2")
            assert await threads.is_busy("t2")

    monkeypatch.setattr(engine_tables, "_is_asking", is_asking)
    play(shared_store, monkeypatch, work)
    runs = runs_database.execute("SELECT run_id, status, error_message FROM runs ORDER BY run_id").fetchall()
    assert runs == [("lost", "error", LOST), ("mine", "running", None), ("old", "success", None)]
    threads = runs_database.execute("SELECT thread_id, status FROM thread ORDER BY thread_id").fetchall()
    assert threads == [("t1", "busy"), ("t2", status)]


def test_whose_a_thread_is_and_why_a_run_has_no_result(
    shared_store: str, runs_database: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work(threads: EngineThreads, _mine: PostgresLocks, _others: PostgresLocks) -> None:
        assert [await threads.owner(each) for each in ("t1", "t2", "deleted", "new")] == ["ann", "bob", "", None]
        runs_database.execute("UPDATE runs SET status = 'error', error_message = 'It broke.' WHERE run_id = 'lost'")
        assert await threads.failure("t2", "lost") == {"error": "Error", "message": "It broke."}
        assert await threads.failure("t2", "old") is None
        assert await threads.failure("nowhere", "") is None
        said = await threads.failure("t1", "")
        assert said is not None
        assert "still at work" in said["message"]

    play(shared_store, monkeypatch, work)


def test_a_run_that_was_cancelled_elsewhere_is_ended_here(
    shared_store: str, runs_database: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work(threads: EngineThreads, _mine: PostgresLocks, _others: PostgresLocks) -> None:
        async with threads.watching():
            written(runs_database, threads._server)
            task = asyncio.create_task(asyncio.sleep(600))
            monkeypatch.setattr(engine_tables, "_tasks", lambda: {"mine": task})
            await threads._stop_cancelled()
            assert not task.cancelling()
            runs_database.execute("UPDATE runs SET status = 'interrupted' WHERE run_id = 'mine'")
            await threads._stop_cancelled()
            with pytest.raises(asyncio.CancelledError):
                await task
            await threads._stop_cancelled()
            [left] = runs_database.execute(
                "SELECT count(*) FROM mendgraph_run_servers WHERE run_id = 'mine'"
            ).fetchone() or [9]
            assert left == 0

    play(shared_store, monkeypatch, work)


def test_runs_end_with_their_server_or_are_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []

    async def run(name: str, seconds: float) -> None:
        try:
            await asyncio.sleep(seconds)
            told.append(f"{name} ended")
        except asyncio.CancelledError:
            await asyncio.sleep(0)
            told.append(f"{name} was cut off")
            raise

    async def play() -> None:
        tasks = {name: asyncio.create_task(run(name, seconds)) for name, seconds in (("short", 0), ("long", 600))}
        monkeypatch.setattr(engine_tables, "_tasks", lambda: tasks)
        monkeypatch.setattr(engine_tables, "LAST_S", 0.05)
        await engine_tables.finish_runs()
        await engine_tables.finish_runs()

    asyncio.run(play())
    assert told == ["short ended", "long was cut off"]
