"""What is refused where a row is written, and what a deleted thread leaves behind."""

import asyncio
from collections.abc import Iterator
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest
from starlette.exceptions import HTTPException

from tests.graph.fleet.serving.engine_database import engine_database

if any(find_spec(name) is None for name in ("aegra_api", "greenlet", "asyncpg")):
    pytest.skip("the server's engine is missing: pip install 'mendgraph[serve]'", allow_module_level=True)

from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import create_async_engine

from mendgraph.graph.fleet.serving.engine_tables import BriefSession, forget, may_begin

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
