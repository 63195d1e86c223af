"""The application of `mendgraph serve`: Aegra (Apache-2.0, needs PostgreSQL) behind our middleware.

We use its documented application, configuration and API. Its tables are its own.
"""

import asyncio
import logging
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from mendgraph.graph.fleet.serving.admission import CannotServeError, Locks, open_admitter
from mendgraph.graph.fleet.serving.middleware import TenantMiddleware
from mendgraph.graph.fleet.serving.request_guard import App
from mendgraph.nodes.language.installation import how_to_add
from mendgraph.nodes.workspace.store.database import StoreError

_FOLDER: Final = Path(__file__).parent
_SETTINGS: Final = {
    "AEGRA_CONFIG": str(_FOLDER / "aegra.json"),
    "REDIS_BROKER_ENABLED": "false",  # there is no queue: a run ends with its server
    "CRON_ENABLED": "false",
}
_DEFAULTS: Final = {
    "ENV_MODE": "PRODUCTION",  # the log has one JSON object per line
    "LOG_LEVEL": "WARNING",
    "SQLALCHEMY_POOL_SIZE": "8",
    "SQLALCHEMY_MAX_OVERFLOW": "40",  # some versions hold a connection for each stream
    "LANGGRAPH_MAX_POOL_SIZE": "8",
}
"""Settings that an operator may override."""
_LOCK_POLL_S: Final = 0.1
_SHUTDOWN_TIMEOUT_S: Final = 10
"""Seconds for open requests when the server is asked to end."""
_URL: Final = "postgresql://"
"""The engine's drivers read the rest from the environment: they parse URLs differently, and its migrations accept no %
sign, which encoded passwords have."""
_CONNECTION: Final = {
    "dbname": "PGDATABASE",
    "hostaddr": "PGHOST",
    **{
        name: f"PG{name.replace('_', '').upper()}"
        for name in ("host", "port", "user", "password", "passfile", "sslmode", "sslcert", "sslkey", "sslrootcert")
    },
    "target_session_attrs": "PGTARGETSESSIONATTRS",
}
"""Variables of libpq and asyncpg. Source: postgresql.org/docs/current/libpq-envars.html."""


def create_app() -> App:
    """Return the application, before it is started.

    Raises:
        CannotServeError: the extra `serve`, the database or the tenants file is missing.
    """
    admitter = open_admitter()
    locks = admitter.locks
    if any(find_spec(name) is None for name in ("aegra_api", "greenlet", "psycopg")):
        raise CannotServeError(f"The server needs {how_to_add('serve')}.")

    try:
        if locks.take("looking"):  # this creates the tables of the store
            locks.release("looking")
    except StoreError as error:
        raise CannotServeError(str(error)) from None

    os.environ.update(_SETTINGS, DATABASE_URL=_URL, **connection_variables(locks.url.url))
    for name, value in _DEFAULTS.items():
        os.environ.setdefault(name, value)

    from aegra_api.core.database import db_manager  # type: ignore[import-untyped, unused-ignore]
    from aegra_api.main import app  # type: ignore[import-untyped, unused-ignore]

    _log_tracebacks()
    inner = app.router.lifespan_context

    @asynccontextmanager
    async def lifespan(application: Any) -> AsyncIterator[Any]:
        inner_lifespan = inner(application)
        async with exclusive(locks, "starting"):  # the engine's tables cannot be created by two servers at once
            state = await inner_lifespan.__aenter__()

        db_manager.get_engine().sync_engine.hide_parameters = True  # logged errors would show requests

        try:
            yield state
        finally:
            await inner_lifespan.__aexit__(None, None, None)

    app.router.lifespan_context = lifespan

    async def delete_checkpoints(thread: str) -> None:
        await db_manager.get_checkpointer().adelete_thread(thread)

    return TenantMiddleware(app, admitter.tenants, locks, delete_checkpoints)


def _log_tracebacks() -> None:
    """Add tracebacks to the engine's JSON lines, which only say that there was an error."""
    import structlog

    for handler in logging.getLogger().handlers:
        if isinstance(handler.formatter, structlog.stdlib.ProcessorFormatter):
            handler.formatter.processors = (structlog.processors.format_exc_info, *handler.formatter.processors)


@asynccontextmanager
async def exclusive(locks: Locks, name: str) -> AsyncIterator[None]:
    """Inside, hold this lock; wait for it first. It ends with its process."""
    while not await asyncio.to_thread(locks.take, name):  # noqa: ASYNC110 - another process releases it
        await asyncio.sleep(_LOCK_POLL_S)

    try:
        yield
    finally:
        await asyncio.to_thread(locks.release, name)


def connection_variables(url: str) -> dict[str, str]:
    """Return the database's URL as environment variables that every driver reads."""
    from psycopg.conninfo import conninfo_to_dict

    parts = conninfo_to_dict(url)
    return {variable: str(parts[name]) for name, variable in _CONNECTION.items() if parts.get(name)}


def run_server(host: str, port: int) -> int:
    """Serve until the process is asked to end; return the exit code, 1 if it did not start, as the log explains.

    Raises:
        CannotServeError: as `create_app` says.
    """
    app = create_app()
    import uvicorn

    config = uvicorn.Config(
        app, host=host, port=port, log_level="warning", timeout_graceful_shutdown=_SHUTDOWN_TIMEOUT_S
    )
    server = uvicorn.Server(config)
    server.run()

    return 0 if server.started else 1
