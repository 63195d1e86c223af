"""The cost of the shared store's server: connections, CPU time, commits, log and size."""

import os
import threading
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from benchmarks.scale.process import process_ids, stat_fields

_INTERVAL_S: Final = 0.1
_CONNECTIONS: Final = "SELECT count(*) FROM pg_stat_activity WHERE datname = %s"
_COUNTERS: Final = """
SELECT
    txid_snapshot_xmax(txid_current_snapshot()), pg_database_size(%s),
    pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')
"""
"""Both counters are those of the server and up to date; those of `pg_stat_database` lag by seconds."""
_DATA_DIRECTORY: Final = "SELECT setting FROM pg_settings WHERE name = 'data_directory'"


@dataclass(frozen=True)
class ServerCounters:
    """The counters of a server: writing transactions, bytes of the database and of the write-ahead log.

    `cpu_s` is 0 for a server on another machine.
    """

    commits: int = 0
    size: int = 0
    log_bytes: int = 0
    cpu_s: float = 0.0

    def __sub__(self, other: "ServerCounters") -> "ServerCounters":
        """Return the growth since other counters."""
        return ServerCounters(
            self.commits - other.commits,
            self.size - other.size,
            self.log_bytes - other.log_bytes,
            self.cpu_s - other.cpu_s,
        )


class Server:
    """A context manager that watches a database. `connections` is the maximum of concurrent connections."""

    def __init__(self, url: str) -> None:
        self._name = str(conninfo_to_dict(url)["dbname"])
        self._url = make_conninfo(url, dbname="postgres")  # another database, so that this connection does not count
        self.connections = 0

    def __enter__(self) -> Self:
        """Start the thread that counts connections."""
        self._database = psycopg.connect(self._url, autocommit=True)
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._count_connections, name="connections", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        """Stop the thread and close the connection."""
        self._stop.set()
        self._thread.join()
        self._database.close()

    def counters(self) -> ServerCounters:
        """Return the current counters."""
        with self._lock:
            commits, size, log_bytes = self._database.execute(_COUNTERS, (self._name,)).fetchone() or (0, 0, 0)
            (folder,) = self._database.execute(_DATA_DIRECTORY).fetchone() or ("",)
        return ServerCounters(int(commits), int(size), int(log_bytes), server_cpu_s(folder))

    def _count_connections(self) -> None:
        while not self._stop.wait(_INTERVAL_S):
            with self._lock:
                (count,) = self._database.execute(_CONNECTIONS, (self._name,)).fetchone() or (0,)
            self.connections = max(self.connections, int(count))


def server_cpu_s(folder: str) -> float:
    """Return the CPU seconds of all processes of the server with this data folder; 0 if it is on another machine."""
    try:
        with open(os.path.join(folder, "postmaster.pid"), encoding="utf-8", errors="replace") as file:
            server = int(file.readline())
    except (OSError, ValueError):
        return 0.0

    ticks = 0
    for process in process_ids():
        with suppress(OSError, ValueError, IndexError):
            fields = stat_fields(process)
            if process == server:
                ticks += sum(map(int, fields[11:15]))  # includes its completed children
            elif int(fields[1]) == server:
                ticks += sum(map(int, fields[11:13]))
    return ticks / os.sysconf("SC_CLK_TCK")
