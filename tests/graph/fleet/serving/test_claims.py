"""Claims on runs in PostgreSQL: whose they are, who takes them up, and that it is one of many."""

import asyncio
import json
import os
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from mendgraph.graph.configuration.context import AgentContext
from mendgraph.graph.fleet.serving.claims import ASKED, MOST_TRIES, Claim, Claims, Locks
from mendgraph.graph.fleet.serving.tenants import Tenant, Tenants
from mendgraph.nodes.execute_tools.store.database import read_url

TENANTS = Tenants({"ann": Tenant("ann", (), AgentContext(), runs_at_once=1)}, root="/")
RUN = Claim("r1", "t1", "ann", json.dumps({"stream_mode": ["values"], "context": {"workspace": "website"}}))
DIED = 10
HANGS = 30
"""Seconds without a heartbeat."""


class Server:
    """One of several, with an engine that begins whatever is asked of it."""

    def __init__(self, url: str) -> None:
        self.locks = Locks(read_url(url))
        self.claims = Claims(self.locks, TENANTS)
        self.asked: list[tuple[str, str]] = []
        self.status = "running"

    def begin(self, claim: Claim = RUN, orphan: Claim | None = None) -> None:
        assert self.locks.take(f"thread {claim.thread}")
        assert self.locks.take("run 0 of ann")
        self.claims.enter(claim, orphan)

    async def ask(self, user: str, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        self.asked.append((method, path))
        if body is not None:
            request = ASKED.get()
            assert (user, body, request is not None) == ("ann", {**json.loads(RUN.request), "input": {}}, True)
            assert request is not None
            orphan = request.orphan
            assert orphan is not None
            self.begin(Claim(f"{orphan.run}+", orphan.thread, user, request.request, orphan.tries + 1), orphan)
            request.stored.set()
        return 200, {"status": self.status}

    def look(self) -> list[tuple[str, str]]:
        """Once; what was asked of the engine."""

        self.asked.clear()
        asyncio.run(self.claims.look(self.ask))
        return [*self.asked]

    def die(self) -> None:
        self.locks._locks.close()


def silent(url: str, seconds: int) -> None:
    with psycopg.connect(url) as operator:
        operator.execute("UPDATE mendgraph.claims SET beat = beat - make_interval(secs => %s)", (seconds,))


@pytest.fixture
def servers(shared_store: str) -> Iterator[tuple[Server, Server, Server]]:
    three = Server(shared_store), Server(shared_store), Server(shared_store)
    yield three
    for each in three:
        each.die()


WRITTEN = [("GET", "/threads/t1/runs/r1"), ("GET", "/threads/t1")]
TAKEN_UP = [("POST", "/threads/t1/runs/r1/cancel"), ("POST", "/threads/t1/runs")]


def test_a_run_is_taken_up_once_its_servers_lock_is_free(
    shared_store: str, servers: tuple[Server, Server, Server]
) -> None:
    first, second, third = servers
    first.begin()
    silent(shared_store, DIED)
    assert second.look() == []
    first.die()
    assert second.look() == TAKEN_UP
    assert third.look() == []
    assert [each.claims.where("r1") for each in (second, third)] == [("r1+", "here"), ("r1+", "elsewhere")]
    assert third.claims.is_busy("t1")


def test_a_server_that_hangs_loses_its_locks_and_ends_when_it_wakes(
    shared_store: str, servers: tuple[Server, Server, Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, _ = servers
    first.begin()
    first.claims.renew()
    silent(shared_store, HANGS)
    assert second.look() == TAKEN_UP
    assert not first.locks.take("thread t1")
    ended: list[int] = []
    monkeypatch.setattr(os, "_exit", ended.append)
    first.claims.check()
    assert ended == []  # its last heartbeat is new enough for it to be sure
    first.claims.renew()
    assert ended == [1]


def test_a_run_that_its_servers_die_of_is_left_alone(shared_store: str, servers: tuple[Server, Server, Server]) -> None:
    first, second, _ = servers
    first.begin(RUN._replace(tries=MOST_TRIES))
    first.die()
    silent(shared_store, DIED)
    assert second.look() == TAKEN_UP[:1]
    assert (second.claims.where("r1"), second.claims.is_busy("t1")) == (("r1", "over"), False)


def test_a_user_whose_places_are_taken_waits(shared_store: str, servers: tuple[Server, Server, Server]) -> None:
    first, second, third = servers
    first.begin()
    first.die()
    silent(shared_store, DIED)
    assert third.locks.take("run 0 of ann")
    assert second.look() == []
    third.die()
    silent(shared_store, DIED)
    assert second.look() == TAKEN_UP


def test_an_end_that_the_engine_did_not_write_down_is_found_again(
    shared_store: str, servers: tuple[Server, Server, Server]
) -> None:
    first, second, _ = servers
    first.begin()
    first.claims.leave(RUN.run)
    first.die()
    silent(shared_store, DIED)
    assert not second.claims.is_busy("t1")
    second.status = "success"
    assert second.look() == WRITTEN
    first.begin()
    first.claims.leave(RUN.run)
    first.die()
    silent(shared_store, DIED)
    second.status = "busy"
    assert second.look() == [WRITTEN[0], *TAKEN_UP]


def test_the_runs_of_a_server_that_is_told_to_end_are_for_others(
    shared_store: str, servers: tuple[Server, Server, Server]
) -> None:
    first, second, _ = servers
    first.begin()
    first.claims.closing = True
    first.claims.leave(RUN.run)
    first.die()
    silent(shared_store, DIED)
    assert second.look() == TAKEN_UP


def test_a_run_that_is_cancelled_meanwhile_is_not_taken_up(
    shared_store: str, servers: tuple[Server, Server, Server]
) -> None:
    first, second, _ = servers
    first.begin()
    first.die()
    second.claims.cancel("r1")
    second.status = "interrupted"
    silent(shared_store, DIED)
    assert second.look() == WRITTEN
    assert second.claims.where("r1") == ("r1", "over")
