"""Connections to PostgreSQL, and texts as it can hold them."""

import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from urllib.parse import quote

import psycopg
import pytest

from mendgraph.nodes.execute_tools.files.deadline import monotonic_s, pause
from mendgraph.nodes.execute_tools.store import postgres_connections as module
from mendgraph.nodes.execute_tools.store.database import StoreError
from mendgraph.nodes.execute_tools.store.postgres_connections import (
    MOST_CONNECTIONS,
    Connections,
    close_all,
    connections_to,
)
from mendgraph.nodes.execute_tools.store.postgres_url import read_url
from tests.postgres import running_postgres

WORD = "-".join(("plum", "51", "orchard"))
NO_RIGHTS = (
    "its user may not do this: GRANT CREATE ON DATABASE, or let another user start mendgraph once, who then has to"
    " GRANT USAGE ON SCHEMA mendgraph, and SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA mendgraph."
)


@pytest.fixture
def connections(shared_store: str) -> Iterator[Connections]:
    opened = Connections(read_url(shared_store))
    yield opened
    opened.close()


def ask(connections: Connections, question: str = "SELECT 1", beginning: str = "BEGIN") -> object:
    with connections.lent(beginning) as connection:
        return connection.execute(question.encode()).fetchone()


def refusal(connections: Connections, question: str = "SELECT 1") -> str:
    with pytest.raises(StoreError) as caught:
        ask(connections, question)
    return str(caught.value)


def others(url: str, do: str) -> int:
    with psycopg.connect(url, autocommit=True, application_name="tests") as admin:
        found = admin.execute(
            f"SELECT {do} FROM pg_stat_activity WHERE application_name = 'mendgraph' AND datname = current_database()"  # noqa: S608 - ours
        )
        return len(found.fetchall())


def test_who_waits_too_long_for_one_is_told(connections: Connections, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LONGEST_WAIT_S", 0.0)
    held, free = threading.Barrier(MOST_CONNECTIONS + 1), threading.Event()

    def hold() -> None:
        with connections.lent("BEGIN"):
            held.wait()
            free.wait()

    threads = [threading.Thread(target=hold) for _ in range(MOST_CONNECTIONS)]
    for thread in threads:
        thread.start()
    held.wait()
    said = refusal(connections)
    free.set()
    for thread in threads:
        thread.join()
    assert said.endswith("cannot be used: no connection was free for 0 s. Run fewer tasks at once.")
    assert ask(connections) == (1,)


@pytest.fixture
def guest(shared_store: str) -> Iterator[Connections]:
    """Those of a user for whom the server has two connections."""
    name = f"guest_{os.getpid()}"
    with psycopg.connect(shared_store, autocommit=True) as admin:
        admin.execute(f"CREATE ROLE {name} LOGIN CONNECTION LIMIT 2".encode())
        opened = Connections(read_url(shared_store.replace("//tester@", f"//{name}@")))
        yield opened
        opened.close()
        admin.execute("SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity WHERE usename = %s", (name,))
        admin.execute(f"DROP ROLE {name}".encode())


def test_threads_wait_for_the_connections_that_the_server_allows_them(guest: Connections) -> None:
    """One of them is the locks'."""
    kept = guest.connect()
    ask(guest)
    with ThreadPoolExecutor(5) as pool:
        assert list(pool.map(lambda _: ask(guest, "SELECT 1 FROM pg_sleep(0.01)"), range(10))) == [(1,)] * 10
    kept.close()


def test_nobodys_function_takes_the_place_of_the_servers(connections: Connections, shared_store: str) -> None:
    """On servers before 15 whoever may connect may make functions in `public`."""
    with psycopg.connect(shared_store, autocommit=True) as admin:
        admin.execute(
            "CREATE FUNCTION public.hashtextextended(text, integer) RETURNS bigint LANGUAGE sql AS 'SELECT 7::bigint'"
        )
        assert admin.execute("SELECT hashtextextended('w', 0)").fetchone() == (7,)
    assert ask(connections, "SELECT hashtextextended('w', 0)") != (7,)


def test_an_error_that_somebody_caught_inside_is_no_success(connections: Connections) -> None:
    with ExitStack() as stack:
        connection = stack.enter_context(connections.lent("BEGIN"))
        with pytest.raises(psycopg.Error):
            connection.execute("SELECT no_such_column")
        with pytest.raises(StoreError, match="nothing of it was written"):
            stack.close()
    assert ask(connections) == (1,)


def test_connections_that_died_while_they_lay_idle_are_replaced(connections: Connections, shared_store: str) -> None:
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(lambda _: ask(connections, "SELECT pg_sleep(0.05)"), range(3)))
    assert others(shared_store, "pg_terminate_backend(pid, 60000)") > 0
    assert [ask(connections) for _ in range(4)] == [(1,)] * 4


def test_one_that_is_cut_off_in_the_middle_is_told(connections: Connections, shared_store: str) -> None:
    with ExitStack() as stack:
        stack.enter_context(connections.lent("BEGIN"))
        others(shared_store, "pg_terminate_backend(pid, 60000)")
        with pytest.raises(StoreError) as caught:
            stack.close()
    assert "the server was stopped, or is starting" in str(caught.value)
    assert ask(connections) == (1,)


@pytest.mark.parametrize(
    ("state", "said"),
    [
        ("53100", "its disk is full. Make room and try again."),
        ("53300", "it has no connection left: raise its max_connections, or run fewer processes."),
        ("57P01", "the server was stopped, or is starting: try again when it is there."),
        ("25006", "it may only be read: name its primary server in MENDGRAPH_STORE_URL."),
        ("42501", NO_RIGHTS),
        ("42P01", "no: somebody has changed its tables. Put a backup in its place, or use an empty database."),
        ("22012", "no (SQLSTATE 22012)."),
    ],
)
def test_each_kind_of_refusal_has_its_remedy(connections: Connections, state: str, said: str) -> None:
    raised = refusal(connections, f"DO $$ BEGIN RAISE EXCEPTION 'no' USING ERRCODE = '{state}'; END $$")
    assert raised == f"The shared store {connections.url.name} cannot be used: {said}"


def test_a_wrong_password_is_told_and_never_shown() -> None:
    with running_postgres() as server:
        with psycopg.connect(server, autocommit=True) as admin:
            admin.execute(f"CREATE ROLE guest LOGIN PASSWORD '{WORD}'".encode())
            (hba,) = admin.execute("SHOW hba_file").fetchone() or ("",)
            admin.execute("COPY (SELECT 'local all tester trust') TO '" + hba.encode().decode() + "'")
            with open(hba, "a", encoding="ascii") as rules:
                rules.write("local all all scram-sha-256\n")
            admin.execute("SELECT pg_reload_conf()")
        host = server.partition("host=")[2]
        right, wrong = (f"postgresql://guest:{quote(word)}@/postgres?host={host}" for word in (WORD, f"not-{WORD}"))
        said = refusal(Connections(read_url(wrong)))
        opened = Connections(read_url(right))
        assert ask(opened) == (1,)
        opened.close()
    assert "cannot be reached" in said
    assert WORD not in said


def test_a_process_has_one_set_for_each_database(shared_store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    url = read_url(shared_store)
    mine = connections_to(url)
    assert connections_to(url) is mine
    ask(mine)
    with monkeypatch.context() as patch:
        patch.setattr(os, "getpid", lambda: -1)
        theirs = connections_to(url)
        assert theirs is not mine
        close_all()
    assert ask(mine) == (1,)
    close_all()
    latest = monotonic_s() + 30
    while others(shared_store, "pid") and monotonic_s() < latest:  # the server takes a moment to notice
        pause(0.01)
    assert others(shared_store, "pid") == 0


def test_a_text_that_postgresql_cannot_hold_is_stored_without_what_it_refuses(connections: Connections) -> None:
    with connections.lent("BEGIN") as connection:
        row = connection.execute("SELECT %s::text, 1.5::numeric, 2::bigint", ("a\0b\ud800",)).fetchone()
    assert row == ("a\u2400b\ufffd", 1.5, 2)
