"""What the server of the shared store does meanwhile: its connections, its CPU, its commits, its log and its size."""

import os
import threading
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

_LOOK_S: Final = 0.1
_CONNECTIONS: Final = "SELECT count(*) FROM pg_stat_activity WHERE datname = %s"
_DONE: Final = """
SELECT
    txid_snapshot_xmax(txid_current_snapshot()), pg_database_size(%s),
    pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')
"""
"""Both counters are those of the whole server and exact at once; the sums of `pg_stat_database` come seconds later."""
_SERVER: Final = "SELECT setting FROM pg_settings WHERE name = 'data_directory'"


@dataclass(frozen=True)
class Done:
    """What a server has done so far: transactions that wrote, bytes of the database and of the server's log.

    CPU seconds are 0 for one of another machine.
    """

    commits: int = 0
    size: int = 0
    log_bytes: int = 0
    cpu_s: float = 0.0


class Server:
    """Looks at a database, as a context manager; `connections` is the most that others had at once."""

    def __init__(self, url: str) -> None:
        self._name = str(conninfo_to_dict(url)["dbname"])
        self._beside = make_conninfo(url, dbname="postgres")  # so that looking does not count
        self.connections = 0

    def __enter__(self) -> Self:
        """Begin to look."""
        self._database = psycopg.connect(self._beside, autocommit=True)
        self._ended, self._using = threading.Event(), threading.Lock()
        self._looking = threading.Thread(target=self._look, name="connections", daemon=True)
        self._looking.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        """Look no longer."""
        self._ended.set()
        self._looking.join()
        self._database.close()

    def done(self) -> Done:
        """What it has done by now."""
        with self._using:
            commits, size, log_bytes = self._database.execute(_DONE, (self._name,)).fetchone() or (0, 0, 0)
            (folder,) = self._database.execute(_SERVER).fetchone() or ("",)
        return Done(int(commits), int(size), int(log_bytes), server_cpu_s(folder))

    def _look(self) -> None:
        while not self._ended.wait(_LOOK_S):
            with self._using:
                (now,) = self._database.execute(_CONNECTIONS, (self._name,)).fetchone() or (0,)
            self.connections = max(self.connections, int(now))


def server_cpu_s(folder: str) -> float:
    """CPU seconds of the server with this data folder and of all its processes; 0 where it is none of this machine."""
    try:
        with open(os.path.join(folder, "postmaster.pid"), encoding="utf-8", errors="replace") as file:
            server = int(file.readline())
    except (OSError, ValueError):
        return 0.0
    ticks = 0
    for name in filter(str.isdigit, os.listdir("/proc")) if os.path.isdir("/proc") else ():
        with suppress(OSError, ValueError, IndexError), open(f"/proc/{name}/stat", encoding="latin-1") as file:
            fields = file.read().rpartition(")")[2].split()
            if int(name) == server:
                ticks += sum(map(int, fields[11:15]))  # with its children that have ended
            elif int(fields[1]) == server:
                ticks += sum(map(int, fields[11:13]))
    return ticks / os.sysconf("SC_CLK_TCK")
