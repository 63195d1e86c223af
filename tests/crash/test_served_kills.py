"""Three servers under load, one after another is killed: no run is lost, and each client hears what it would."""

import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from threading import Event
from typing import Any, Final

import httpx
import psycopg
import pytest
from langgraph_sdk.errors import APIError

from mendgraph.graph.fleet.serving.claims import DEAD_S
from mendgraph.nodes.records import JsonMap, Protocol
from tests.doubles.replies import Reply, Say
from tests.doubles.tool_use import in_protocol, use
from tests.extent import LEVEL, in_sweeps
from tests.postgres import fresh_database
from tests.runs.servers import Servers, some_servers
from tests.workspace_files import changed_files

KILLS: Final = (3, 5, 100)[LEVEL]
CLIENTS: Final = 4
SEED: Final = 27
FILES: Final = {"count.txt": "count = 1\n"}
DONE: Final = {"count.txt": "count = 112\n"}
EDITS: Final = (("count = 1\n", "count = 11\n"), ("count = 11\n", "count = 112\n"))
KINDS: Final = ["human", "ai", "tool", "ai", "tool", "ai"]

pytestmark = [
    in_sweeps,
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),  # connections that were cut off
    pytest.mark.filterwarnings("ignore:Reconnecting without a Last-Event-ID"),  # before the first event
]


@pytest.fixture(scope="module")
def three(postgres: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    pytest.importorskip("aegra_api")
    with (
        fresh_database(postgres) as url,
        some_servers(tmp_path_factory.mktemp("servers"), url, ("first", "second", "third")) as servers,
    ):
        yield servers


def counting(request: JsonMap) -> Reply:
    """The next reply to a history: two edits, one after the other, and an answer that names the order."""
    time.sleep(0.2)
    messages: list[JsonMap] = request["messages"]
    order = next(str(each["content"]) for each in messages if each["role"] == "user")
    results = sum(each["role"] == "tool" for each in messages)
    if results == len(EDITS):
        return Say(f"Done: {order}")
    old, new = EDITS[results]
    return in_protocol(use(("edit_file", {"path": "count.txt", "old_str": old, "new_str": new})), Protocol.NATIVE)


@dataclass
class Clients:
    """They give orders until somebody stops them; each asks whichever server answers."""

    servers: Servers
    stop: Event = field(default_factory=Event)
    asked: Counter[str] = field(default_factory=Counter)

    def work(self, name: str) -> int:
        """Give orders one after another, every second one with approvals. How many there were."""
        choice, orders = random.Random(name), 0
        while not self.stop.is_set():
            self.give(f"{name}-{orders}", choice, approved=orders % 2 == 1)
            orders += 1
        return orders

    def give(self, name: str, choice: random.Random, *, approved: bool) -> None:
        """Give one order and see that all of it was done, once."""
        folder = self.servers.project("ann", name, FILES)
        thread = self._anywhere(choice, lambda client: str(client.threads.create()["thread_id"]))
        given: JsonMap = {"input": {"messages": [{"role": "user", "content": f"Count {name}."}]}}
        while (values := self._end(choice, thread, given, name, approved=approved)).get("outcome") is None:
            asks = self._anywhere(choice, lambda client: client.threads.get_state(thread))["next"] == ["guard"]
            if asks:
                self.asked[name] += 1
                given = {"command": {"resume": "approve"}}
        assert (values["outcome"]["kind"], values["outcome"]["answer"]) == ("FINISHED", f"Done: Count {name}."), name
        assert [each["type"] for each in values["messages"]] == KINDS, name
        assert changed_files(folder, FILES) == DONE, name

    def _end(self, choice: random.Random, thread: str, given: JsonMap, name: str, *, approved: bool) -> JsonMap:
        """The values at the end of a run, or where it asks. Its request is sent again where nobody answered it."""
        context = {"workspace": name, **({"mode": "ask"} if approved else {})}

        def begun(client: Any) -> str:
            found = client.runs.list(thread)
            if {each["run_id"] for each in found} - known:  # it was taken, and its client was not told
                return str(found[0]["run_id"])
            return str(client.runs.create(thread, "mendgraph", context=context, **given)["run_id"])

        known = {each["run_id"] for each in self._anywhere(choice, lambda client: client.runs.list(thread))}
        run = self._anywhere(choice, begun)
        if choice.random() < 0.5:
            return dict(self._anywhere(choice, lambda client: client.runs.join(thread, run)) or {})
        parts = self._anywhere(choice, lambda client: [*client.runs.join_stream(thread, run)])
        return dict([each.data for each in parts if each.event == "values"][-1] or {})

    def _anywhere(self, choice: random.Random, ask: Callable[[Any], Any]) -> Any:
        """What a server says; where it dies meanwhile another one is asked."""
        latest = time.monotonic() + 180
        while True:
            server = choice.choice(self.servers.each)
            try:
                return ask(self.servers.client("ann", server))
            except (httpx.TransportError, APIError):
                if time.monotonic() > latest:
                    raise
                time.sleep(0.2)


def played(servers: Servers, kill: Callable[[], None]) -> Clients:
    """Clients at work while servers are killed."""
    clients = Clients(servers)
    servers.model._then = counting
    with ThreadPoolExecutor(CLIENTS) as people:
        at_work: list[Future[int]] = [people.submit(clients.work, f"c{number}") for number in range(CLIENTS)]
        try:
            kill()
        finally:
            clients.stop.set()
        assert sum(each.result() for each in at_work) >= CLIENTS
    return clients


def test_each_of_three_servers_is_killed_in_turn_under_load(three: Servers) -> None:
    choice = random.Random(SEED)

    def kill() -> None:
        for number in range(KILLS):
            server = three.each[number % 3]
            time.sleep(choice.uniform(0.2, 2.0))
            server.kill()
            time.sleep(choice.uniform(0.0, 1.0))
            server.begin()
            server.wait()

    clients = played(three, kill)
    assert clients.asked.total() > 0
    for server in three.each:
        for line in server.log.splitlines():  # one that died before it was asked anything is refused
            assert "Traceback" not in line or "RunRefusedError: There is nothing to go on with" in line, line


class HeldBack:
    """`counting`, but for the first reply after an edit, which `come` lets go; `waits` says that it is asked for."""

    def __init__(self) -> None:
        self.waits, self.come = Event(), Event()

    def __call__(self, request: JsonMap) -> Reply:
        if len(request["messages"]) > 4 and not self.waits.is_set():
            self.waits.set()
            self.come.wait(120)
        return counting(request)

    def begun(self, servers: Servers, name: str) -> tuple[str, str]:
        """A run at the first server, which waits for that reply: its thread and its id."""
        servers.model._then = self
        servers.project("ann", name, FILES)
        thread = servers.thread("ann", servers.first)
        given: Any = {"messages": [{"role": "user", "content": f"Count {name}."}]}
        client = servers.client("ann", servers.first)
        run = client.runs.create(thread, "mendgraph", input=given, context={"workspace": name})
        assert self.waits.wait(60)
        return thread, str(run["run_id"])


def test_a_server_that_was_stopped_does_nothing_more_when_it_wakes(three: Servers) -> None:
    """Its run is taken from it meanwhile; the reply that it waited for lies in its connection when it wakes."""
    stopped, other, held = three.first, three.second, HeldBack()
    thread, run = held.begun(three, "stopped")
    assert stopped.process is not None
    stopped.process.send_signal(signal.SIGSTOP)
    ended: Any = three.client("ann", other).runs.join(thread, run)
    state, asked = three.state("ann", other, thread), len(three.model.requests)
    held.come.set()
    stopped.process.send_signal(signal.SIGCONT)
    assert stopped.process.wait(60) == 1
    assert "another one has taken up its runs" in stopped.log
    assert ended["outcome"]["answer"] == "Done: Count stopped."
    assert changed_files(three.root / "ann" / "stopped", FILES) == DONE
    assert (three.state("ann", other, thread), len(three.model.requests)) == (state, asked)
    stopped.begin()
    stopped.wait()


def test_connections_that_are_cut_off_take_no_run_away(three: Servers) -> None:
    held = HeldBack()
    thread, run = held.begun(three, "cut-off")
    with psycopg.connect(three.database) as operator:
        others = "datname = current_database() AND pid <> pg_backend_pid()"
        operator.execute(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {others}")  # noqa: S608 - ours
    time.sleep(3 * DEAD_S)
    held.come.set()
    ended: Any = three.client("ann", three.second).runs.join(thread, run)
    assert ended["outcome"]["answer"] == "Done: Count cut-off."
    assert [each["run_id"] for each in three.client("ann", three.each[2]).runs.list(thread)] == [run]
