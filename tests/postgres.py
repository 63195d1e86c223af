"""A PostgreSQL server for tests, on a socket in a temporary folder, in memory if possible.

The server ends with the block or the process that started it. `python -m tests.postgres` starts one for several
processes: it prints the URL of the server and ends at the end of its input.
"""

import ctypes
import glob
import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from urllib.parse import quote, unquote
from uuid import uuid4

import psycopg

from mendgraph.nodes.workspace.files.deadline import monotonic_s, pause

SERVER_VARIABLE = "MENDGRAPH_TEST_POSTGRES"
"""The URL of a running server whose user may create databases. If it is not set, the tests start a server."""

MISSING = "PostgreSQL's server is missing: `make postgres` installs it (Debian, Ubuntu: sudo apt install postgresql)"

NO_POOLER = "PgBouncer is missing: `make postgres` installs it (Debian, Ubuntu: sudo apt install pgbouncer)"

POOLER = """[databases]
* = host={host}
[pgbouncer]
pool_mode = transaction
default_pool_size = {size}
unix_socket_dir = {folder}
listen_port = 6432
auth_type = trust
auth_file = {folder}/users
"""

SETTINGS = {
    "fsync": "off",  # a crash of the machine may lose the data of tests
    "full_page_writes": "off",
    "listen_addresses": "",  # only the Unix socket
    "max_connections": "200",
    "shared_buffers": "64MB",
}
LONGEST_START_S = 60.0
PR_SET_PDEATHSIG = 1


def postgres_programs() -> str | None:
    """The folder of `initdb` and `postgres`, or None if they are not installed."""
    initdb = shutil.which("initdb")
    folders = [os.path.dirname(os.path.realpath(initdb))] if initdb else []
    folders += sorted(glob.glob("/usr/lib/postgresql/*/bin"), reverse=True)
    for folder in folders:
        if all(os.access(f"{folder}/{name}", os.X_OK) for name in ("initdb", "postgres")):
            return folder
    return None


@contextmanager
def running_postgres() -> Iterator[str]:
    """Start a server and yield its URL. Its programs refuse to run as root; they run as the user `postgres` then."""
    programs = postgres_programs()
    assert programs is not None, MISSING
    memory = "/dev/shm" if os.path.isdir("/dev/shm") else None
    with tempfile.TemporaryDirectory(prefix="mendgraph-pg-", dir=memory, ignore_cleanup_errors=True) as folder:
        data, log = f"{folder}/data", Path(folder, "log")
        user, group = server_account()
        if user is not None:
            os.chown(folder, user, group or 0)
        popen = partial(subprocess.Popen[str], stdin=subprocess.DEVNULL, user=user, group=group, cwd=folder)
        with log.open("wb") as output:
            options = ("-D", data, "-U", "tester", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync")
            initdb = popen([f"{programs}/initdb", *options], stdout=output, stderr=output)
            assert initdb.wait(LONGEST_START_S) == 0, log.read_text()
            settings = [f"-c{name}={value}" for name, value in SETTINGS.items()]
            server = popen(
                [f"{programs}/postgres", "-D", data, "-k", folder, *settings],
                stdout=output,
                stderr=output,
                preexec_fn=_stop_with_parent if sys.platform == "linux" else None,
            )
        try:
            url = f"postgresql://tester@/postgres?host={quote(folder, safe='')}"
            wait_for_server(url, server, log)
            yield url
        finally:
            server.send_signal(signal.SIGINT)  # a fast shutdown, which ends open connections
            try:
                server.wait(LONGEST_START_S)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait()


@contextmanager
def postgres_server() -> Iterator[str]:
    """The URL of the configured server, or of a new one."""
    configured = os.environ.get(SERVER_VARIABLE)
    if configured:
        yield configured
        return
    with running_postgres() as url:
        yield url


@contextmanager
def pooler(url: str, size: int) -> Iterator[str]:
    """Start a PgBouncer in transaction mode with `size` connections to the server; yields the URL of the database."""
    program = shutil.which("pgbouncer") or "/usr/sbin/pgbouncer"
    with tempfile.TemporaryDirectory(prefix="mendgraph-pool-") as folder:
        host = unquote(url.partition("host=")[2])
        Path(folder, "users").write_text('"tester" ""\n', encoding="ascii")
        Path(folder, "ini").write_text(POOLER.format(host=host, size=size, folder=folder), encoding="ascii")
        user, group = server_account()
        if user is not None:
            os.chown(folder, user, group or 0)
        log = Path(folder, "log")
        with log.open("wb") as output:
            server = subprocess.Popen(
                [program, f"{folder}/ini"],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                text=True,
                user=user,
                group=group,
            )
        try:
            pooled = f"{url.partition('host=')[0]}host={quote(folder, safe='')}&port=6432"
            wait_for_server(pooled, server, log)
            yield pooled
        finally:
            server.terminate()
            server.wait()


@contextmanager
def fresh_database(server: str, like: str = "template1") -> Iterator[str]:
    """Create a database and yield its URL; at the end it is dropped, also if it has connections.

    The database is a copy of the database `like`, by default an empty one.
    """
    name = f"test_{uuid4().hex}"
    with psycopg.connect(server, autocommit=True) as connection:
        how = " STRATEGY FILE_COPY" if connection.info.server_version >= 150_000 else ""  # the fastest for small ones
        connection.execute(f"CREATE DATABASE {name} TEMPLATE {like}{how}")
    try:
        yield _database_url(server, name)
    finally:
        with psycopg.connect(server, autocommit=True) as connection:
            connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


@contextmanager
def database_with_tables(server: str) -> Iterator[str]:
    """The name of a database with all tables of the product. A copy takes a third of the time of creating them."""
    from mendgraph.graph.persistence.postgres_saver import CHECKPOINTS
    from mendgraph.graph.spending.database import SPENDING_TABLES
    from mendgraph.nodes.workspace.store.database import read_url
    from mendgraph.nodes.workspace.store.database_schema import STORE_TABLES
    from mendgraph.nodes.workspace.store.postgres import PostgresPool, create_tables

    with fresh_database(server) as url:
        pool = PostgresPool(read_url(url))
        for part in (STORE_TABLES, CHECKPOINTS, SPENDING_TABLES):
            create_tables(pool, part)
        yield url.partition("?")[0].rpartition("/")[2]


def _database_url(server: str, name: str) -> str:
    beginning, _, options = server.partition("?")
    return f"{beginning.rpartition('/')[0]}/{name}" + (f"?{options}" if options else "")


def server_account() -> tuple[int | None, int | None]:
    """User and group of the server: those of `postgres` or `nobody` for root, otherwise those of this process."""
    if os.geteuid() != 0:
        return None, None
    for name in ("postgres", "nobody"):
        with suppress(KeyError):
            user = pwd.getpwnam(name)
            return user.pw_uid, user.pw_gid
    raise AssertionError("root cannot run PostgreSQL, and there is no user 'postgres' or 'nobody'")


def _stop_with_parent() -> None:
    """Let the kernel stop the server when its parent process ends."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGINT)


def wait_for_server(url: str, server: "subprocess.Popen[str]", log: Path) -> None:
    latest = monotonic_s() + LONGEST_START_S
    while True:
        try:
            psycopg.connect(url, connect_timeout=5).close()
        except psycopg.OperationalError:
            assert server.poll() is None, log.read_text()
            assert monotonic_s() < latest, log.read_text()
            pause(0.02)
        else:
            return


if __name__ == "__main__":
    with running_postgres() as address:
        sys.stdout.write(f"{address}\n")
        sys.stdout.flush()
        sys.stdin.read()
