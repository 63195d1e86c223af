"""Runs of servers that are gone, as the engine's tables and the locks of the database tell of them."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from importlib.util import find_spec
from typing import Any

import psycopg
import pytest

from mendgraph.graph.fleet.serving.locks import PostgresLocks
from mendgraph.nodes.execute_tools.store.postgres_connections import close_all
from mendgraph.nodes.execute_tools.store.postgres_url import read_url
from tests.graph.fleet.serving.engine_database import engine_database

if any(find_spec(name) is None for name in ("aegra_api", "greenlet", "asyncpg")):
    pytest.skip("the server's engine is missing: pip install 'mendgraph[serve]'", allow_module_level=True)

from mendgraph.graph.fleet.serving import lost_runs
from mendgraph.graph.fleet.serving.lost_runs import LOST, EngineThreads

TABLES = """
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
def database(shared_store: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[psycopg.Connection[Any]]:
    """The engine's database, as an operator sees it."""
    with engine_database(shared_store, monkeypatch, TABLES) as connection:
        yield connection
    close_all()


def play(shared_store: str, monkeypatch: pytest.MonkeyPatch, work: Callable[..., Awaitable[None]]) -> None:
    """Run this on one server, with a second pair of locks for another one."""
    from sqlalchemy.ext.asyncio import create_async_engine

    async def played() -> None:
        engine = create_async_engine("postgresql+asyncpg://")
        monkeypatch.setattr(lost_runs, "_engine", lambda: engine)
        mine, others = PostgresLocks(read_url(shared_store)), PostgresLocks(read_url(shared_store))
        try:
            await work(EngineThreads(mine), mine, others)
        finally:
            mine.close()
            others.close()
            await engine.dispose()

    asyncio.run(played())


def written(database: psycopg.Connection[Any], server: str) -> None:
    database.execute("DELETE FROM mendgraph_run_servers")
    database.execute(
        "INSERT INTO mendgraph_run_servers VALUES ('mine', %s), ('lost', 'gone'), ('old', 'gone')", [server]
    )


@pytest.mark.parametrize(("asking", "status"), [(False, "error"), (True, "interrupted")])
def test_a_run_ends_with_its_server(
    shared_store: str, database: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch, *, asking: bool, status: str
) -> None:
    async def is_asking(_thread: str) -> bool:
        return asking

    async def work(threads: EngineThreads, _mine: PostgresLocks, others: PostgresLocks) -> None:
        async with threads.watching():
            written(database, threads._server)
            await asyncio.to_thread(others.take, "server gone")
            assert await threads.end_lost()
            assert (await threads.is_busy("t1"), await threads.is_busy("t2")) == (True, True)
            others.leave("server gone")
            assert (await threads.is_busy("t2"), await threads.owner("t2"), await threads.owner("t3")) == (
                *(False, "bob"),
                None,
            )
            assert not await threads.is_elsewhere("t2", "lost")
            database.execute("UPDATE mendgraph_run_servers SET server = 'other' WHERE run_id = 'mine'")
            await asyncio.to_thread(others.take, "server other")
            assert [await threads.is_elsewhere("t1", run) for run in ("mine", "old")] == [True, False]
            database.execute("UPDATE mendgraph_run_servers SET server = %s WHERE run_id = 'mine'", [threads._server])
            assert not await threads.is_elsewhere("t1", "mine")
            others.take("thread t2")
            assert await threads.is_busy("t2")

    monkeypatch.setattr(lost_runs, "_is_asking", is_asking)
    play(shared_store, monkeypatch, work)
    runs = database.execute("SELECT run_id, status, error_message FROM runs ORDER BY run_id").fetchall()
    assert runs == [("lost", "error", LOST), ("mine", "running", None), ("old", "success", None)]
    threads = database.execute("SELECT thread_id, status FROM thread ORDER BY thread_id").fetchall()
    assert threads == [("t1", "busy"), ("t2", status)]


def test_whose_a_thread_is_and_why_a_run_has_no_result(
    shared_store: str, database: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work(threads: EngineThreads, _mine: PostgresLocks, _others: PostgresLocks) -> None:
        assert [await threads.owner(each) for each in ("t1", "t2", "deleted", "new")] == ["ann", "bob", "", None]
        database.execute("UPDATE runs SET status = 'error', error_message = 'It broke.' WHERE run_id = 'lost'")
        assert await threads.failure("t2", "lost") == {"error": "Error", "message": "It broke."}
        assert await threads.failure("t2", "old") is None
        assert await threads.failure("nowhere", "") is None
        said = await threads.failure("t1", "")
        assert said is not None
        assert "still at work" in said["message"]

    play(shared_store, monkeypatch, work)


def test_a_run_that_was_cancelled_elsewhere_is_ended_here(
    shared_store: str, database: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work(threads: EngineThreads, _mine: PostgresLocks, _others: PostgresLocks) -> None:
        async with threads.watching():
            written(database, threads._server)
            task = asyncio.create_task(asyncio.sleep(600))
            monkeypatch.setattr(lost_runs, "_tasks", lambda: {"mine": task})
            await threads._stop_cancelled()
            assert not task.cancelling()
            database.execute("UPDATE runs SET status = 'interrupted' WHERE run_id = 'mine'")
            await threads._stop_cancelled()
            with pytest.raises(asyncio.CancelledError):
                await task
            await threads._stop_cancelled()
            [left] = database.execute(
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
        monkeypatch.setattr(lost_runs, "_tasks", lambda: tasks)
        monkeypatch.setattr(lost_runs, "LAST_S", 0.05)
        await lost_runs.finish_runs()
        await lost_runs.finish_runs()

    asyncio.run(play())
    assert told == ["short ended", "long was cut off"]
