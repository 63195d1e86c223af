"""A look at the shared store that makes nothing, and waits for no server that does not answer."""

from contextlib import closing
from typing import Any, Final, NamedTuple

from nodes.execute_tools.environment.shared_connections import Connections
from nodes.execute_tools.environment.shared_database import format_of
from nodes.execute_tools.environment.shared_schema import STORE
from nodes.execute_tools.environment.shared_url import SharedUrl

_CONNECT_S: Final = 2
"""A shell waits for its completion. Source: libpq takes one second for two."""

_BEGIN: Final = "BEGIN READ ONLY; SET LOCAL statement_timeout = '5s'"


class SharedLook(NamedTuple):
    """What is there: the server's version, how many runs the workspace has, and how many bytes the database.

    `runs` is None where nobody has made the tables yet.
    """

    server: str
    runs: int | None
    size: int


def look_at(url: SharedUrl, workspace: str | None) -> SharedLook:
    """What the shared store has of this workspace, which may have no name yet.

    Raises:
        StoreError: it cannot be used.
    """
    connections = Connections(url, _CONNECT_S)
    with closing(connections), connections.lent(_BEGIN) as connection:
        server, size = _only(
            connection.execute("SELECT current_setting('server_version'), pg_database_size(current_database())")
        )
        if format_of(connection, url, STORE) is None:
            return SharedLook(server, None, size)
        counted = "SELECT count(*) FROM mendgraph.all_runs WHERE workspace = %s"
        (runs,) = _only(connection.execute(counted, (workspace,)))
        return SharedLook(server, runs, size)


def names_of_runs(url: SharedUrl, workspace: str, most: int) -> list[tuple[str, str]]:
    """The newest runs of this workspace, each with its task; none where there are no tables.

    Raises:
        StoreError: it cannot be used.
    """
    connections = Connections(url, _CONNECT_S)
    with closing(connections), connections.lent(_BEGIN) as connection:
        if format_of(connection, url, STORE) is None:
            return []
        rows = connection.execute(
            "SELECT run_id, task FROM mendgraph.all_runs WHERE workspace = %s ORDER BY updated DESC, id DESC LIMIT %s",
            (workspace, most),
        )
        return [(str(run_id), str(task)) for run_id, task in rows]


def _only(cursor: Any) -> Any:
    (row,) = cursor.fetchall()
    return row
