"""Aegra behind our checks: the application that `mendgraph serve` runs. Apache-2.0, from PyPI; it needs PostgreSQL.

Of it we use what it documents: its application, its configuration and its API. Its tables are its own.
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
from mendgraph.nodes.execute_tools.store.database import StoreError
from mendgraph.nodes.language.installation import how_to_add

_FOLDER: Final = Path(__file__).parent
_SETTINGS: Final = {
    "AEGRA_CONFIG": str(_FOLDER / "aegra.json"),
    "REDIS_BROKER_ENABLED": "false",  # nothing is queued: a run ends with its server
    "CRON_ENABLED": "false",
}
_DEFAULTS: Final = {
    "ENV_MODE": "PRODUCTION",  # the log has one JSON object for each line, and no colours
    "LOG_LEVEL": "WARNING",
    "SQLALCHEMY_POOL_SIZE": "8",
    "SQLALCHEMY_MAX_OVERFLOW": "40",  # some versions hold a connection for each stream
    "LANGGRAPH_MAX_POOL_SIZE": "8",
}
"""What an operator may set otherwise."""
_LOOK_AGAIN_S: Final = 0.1
_LAST_S: Final = 10
"""Seconds for requests that are open when the server is told to end."""
_NO_NAME: Final = "postgresql://"
"""The engine's drivers read the rest from the environment: they understand different URLs, and its migrations none
with a % sign, which passwords are written with."""
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
    """The application, before it is started.

    Raises:
        CannotServeError: the extra `serve` is missing, nobody says where the database is, or there are no users.
    """
    admitter = open_admitter()
    locks = admitter.locks
    if any(find_spec(name) is None for name in ("aegra_api", "greenlet", "psycopg")):
        raise CannotServeError(f"The server needs {how_to_add('serve')}.")

    try:
        if locks.take("looking"):  # which makes the store's tables where there are none
            locks.leave("looking")
    except StoreError as error:
        raise CannotServeError(str(error)) from None

    os.environ.update(_SETTINGS, DATABASE_URL=_NO_NAME, **connection_variables(locks.url.url))
    for name, value in _DEFAULTS.items():
        os.environ.setdefault(name, value)

    from aegra_api.core.database import db_manager  # type: ignore[import-untyped, unused-ignore]
    from aegra_api.main import app  # type: ignore[import-untyped, unused-ignore]

    _log_tracebacks()
    inner = app.router.lifespan_context

    @asynccontextmanager
    async def lifespan(application: Any) -> AsyncIterator[Any]:
        inner_lifespan = inner(application)
        async with alone(locks, "starting"):  # two servers that make the engine's tables at once fail
            state = await inner_lifespan.__aenter__()

        db_manager.get_engine().sync_engine.hide_parameters = True  # they hold requests, and errors are logged

        try:
            yield state
        finally:
            await inner_lifespan.__aexit__(None, None, None)

    app.router.lifespan_context = lifespan

    async def forget(thread: str) -> None:
        await db_manager.get_checkpointer().adelete_thread(thread)

    return TenantMiddleware(app, admitter.tenants, locks, forget)


def _log_tracebacks() -> None:
    """Write down where an error comes from: the engine's JSON lines only say that there is one."""
    import structlog

    for handler in logging.getLogger().handlers:
        if isinstance(handler.formatter, structlog.stdlib.ProcessorFormatter):
            handler.formatter.processors = (structlog.processors.format_exc_info, *handler.formatter.processors)


@asynccontextmanager
async def alone(locks: Locks, name: str) -> AsyncIterator[None]:
    """Wait until this lock is ours, and hold it until the block ends; it ends with a process that dies in it."""
    while not await asyncio.to_thread(locks.take, name):  # noqa: ASYNC110 - another process leaves it
        await asyncio.sleep(_LOOK_AGAIN_S)

    try:
        yield
    finally:
        await asyncio.to_thread(locks.leave, name)


def connection_variables(url: str) -> dict[str, str]:
    """The database's URL, as environment variables that every driver reads."""
    from psycopg.conninfo import conninfo_to_dict

    parts = conninfo_to_dict(url)
    return {variable: str(parts[name]) for name, variable in _CONNECTION.items() if parts.get(name)}


def run_server(host: str, port: int) -> int:
    """Serve until the process is asked to end; the exit code: 1 where it did not start, which the log explains.

    Raises:
        CannotServeError: as `create_app` says.
    """
    app = create_app()
    import uvicorn

    config = uvicorn.Config(app, host=host, port=port, log_level="warning", timeout_graceful_shutdown=_LAST_S)
    server = uvicorn.Server(config)
    server.run()

    return 0 if server.started else 1
