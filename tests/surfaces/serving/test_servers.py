"""Several servers on one PostgreSQL, for several users: what is kept when one is killed, and what is separate."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import httpx
import psycopg
import pytest
from langgraph_sdk.errors import ConflictError
from psycopg import sql

from tests.doubles.replies import Say, Stall
from tests.doubles.tool_use import use
from tests.extent import slow
from tests.scenarios.sample_repair import CALC, EDIT, MENDED, READ, TASK
from tests.surfaces.serving.servers import SECRET, Server, Servers, token, wait_for
from tests.vocabulary import JsonMap
from tests.workspace_files import changed_files

COUNT = {"count.txt": "count = 1\n"}
FIRST = use(("edit_file", {"path": "count.txt", "old_str": "count = 1", "new_str": "count = 11"}))
SECOND = use(("edit_file", {"path": "count.txt", "old_str": "count = 11", "new_str": "count = 112"}))
MOST_OPEN = 16
"""Requests of one user that a server holds open."""
WAIT: Any = {"messages": [("user", "Wait.")]}


def outcome(ended: JsonMap) -> Any:
    return ended["outcome"]["kind"], ended["outcome"]["reason"]


def kill_waiting_server(servers: Servers, server: Server, user: str, thread: str, project: str, calls: int) -> str:
    """Kill the server once its run, which is named, waits for the reply to this many requests."""
    before = len(servers.model.requests)
    turn_input: Any = {"messages": [("user", "Count.")]}
    run = servers.client(user, server).runs.create(
        thread, "mendgraph", input=turn_input, context={"workspace": project}
    )
    wait_for(lambda: len(servers.model.requests) == before + calls, lambda: server.log)
    server.kill()
    return str(run["run_id"])


@slow
def test_turns_alternate_between_servers_and_a_question_is_answered_on_another(servers: Servers) -> None:
    folder = servers.project("ann", "website", CALC)
    thread = servers.thread("ann", servers.first)
    servers.model.say(use(READ), use(EDIT), Say("add now adds."), Say("You are welcome."))
    interrupted = servers.ask("ann", servers.first, thread, TASK, workspace="website", mode="ask")
    assert "outcome" not in interrupted or interrupted["outcome"] is None
    question = servers.state("ann", servers.second, thread)
    assert (question["next"], changed_files(folder, CALC)) == (["guard"], {})
    answered: Any = servers.client("ann", servers.second).runs.wait(thread, "mendgraph", command={"resume": "approve"})
    assert (outcome(answered), changed_files(folder, CALC)) == (("FINISHED", "answered"), {"calc.py": MENDED})
    thanked = servers.ask("ann", servers.first, thread, "Thanks.", workspace="website")
    assert thanked["outcome"]["answer"] == "You are welcome."
    kinds = ["human", "ai", "tool", "ai", "tool", "ai", "human", "ai"]
    for server in (servers.first, servers.second):
        assert [message["type"] for message in servers.state("ann", server, thread)["values"]["messages"]] == kinds


@slow
def test_run_of_a_killed_server_continues_on_another_server(servers: Servers) -> None:
    folder = servers.project("ann", "counter", COUNT)
    thread = servers.thread("ann", servers.first)
    servers.model.say(FIRST, Stall(reply=Say("never said")))
    run = kill_waiting_server(servers, servers.first, "ann", thread, "counter", calls=2)
    assert changed_files(folder, COUNT) == {"count.txt": "count = 11\n"}

    servers.model.say(SECOND, Say("Counted."), Say("Hello again."))
    second = servers.client("ann", servers.second)
    second.runs.cancel(thread, run)
    ended = servers.ask("ann", servers.second, thread, None)
    assert (outcome(ended), changed_files(folder, COUNT)) == (("FINISHED", "answered"), {"count.txt": "count = 112\n"})
    kinds = [message["type"] for message in servers.state("ann", servers.second, thread)["values"]["messages"]]
    assert kinds == ["human", "ai", "tool", "ai", "tool", "ai"]
    assert [run["status"] for run in second.runs.list(thread)] == ["success", "interrupted"]

    servers.first.begin()
    servers.first.wait()
    assert servers.ask("ann", servers.first, thread, "Hi.", workspace="counter")["outcome"]["answer"] == "Hello again."


@slow
def test_run_of_a_killed_server_is_resumed_by_the_command(servers: Servers) -> None:
    folder = servers.project("ann", "resumed", COUNT)
    thread = servers.thread("ann", servers.first)
    servers.model.say(FIRST, Stall(reply=Say("never said")))
    kill_waiting_server(servers, servers.first, "ann", thread, "resumed", calls=2)

    servers.model.say(SECOND, Say("Counted."), Say("Hello again."))
    program = "import sys; from mendgraph.graph.start import main; sys.exit(main())"
    command = [sys.executable, "-c", program, "--root", str(folder), "resume", f"ann/{thread}"]
    environment = {**os.environ, **servers.first.environment, "MENDGRAPH_DATA_DIR": str(servers.first.folder / "data")}
    resumed = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, check=False)
    assert resumed.returncode == 0, resumed.stdout + resumed.stderr
    assert changed_files(folder, COUNT) == {"count.txt": "count = 112\n"}

    again = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, check=False)
    assert (again.returncode, "no turn of this thread was interrupted" in again.stderr) == (2, True)

    values = servers.state("ann", servers.second, thread)["values"]
    assert (outcome(values), values["run_id"]) == (("FINISHED", "answered"), f"ann/{thread}")
    assert servers.ask("ann", servers.second, thread, "Hi.", workspace="resumed")["outcome"]["answer"] == "Hello again."
    servers.first.begin()
    servers.first.wait()


@slow
def test_cancelled_run_frees_its_thread_on_all_servers(servers: Servers) -> None:
    servers.project("ann", "slow", CALC)
    thread = servers.thread("ann", servers.first)
    servers.model.say(Stall(reply=Say("never said")))
    first, second = servers.client("ann", servers.first), servers.client("ann", servers.second)
    run: Any = first.runs.create(thread, "mendgraph", input=WAIT, context={"workspace": "slow"})
    wait_for(lambda: servers.model.remaining == 0, lambda: servers.first.log)
    with pytest.raises(ConflictError, match="is working"):
        second.runs.create(thread, "mendgraph", input=WAIT)
    first.runs.cancel(thread, run["run_id"], wait=True)
    servers.model.say(Say("Here I am."))
    assert servers.ask("ann", servers.second, thread, "Hello?", workspace="slow")["outcome"]["answer"] == "Here I am."
    assert [run["status"] for run in second.runs.list(thread)] == ["success", "interrupted"]


@slow
def test_users_see_nothing_of_each_other(servers: Servers) -> None:
    folders = {user: servers.project(user, "same", CALC) for user in ("ann", "cleo")}
    thread = servers.thread("ann", servers.first)
    servers.model.say(use(EDIT), Say("Done."))
    assert outcome(servers.ask("ann", servers.first, thread, TASK, workspace="same")) == ("FINISHED", "answered")
    assert {user: changed_files(folder, CALC) for user, folder in folders.items()} == {
        "ann": {"calc.py": MENDED},
        "cleo": {},
    }
    [run] = servers.client("ann", servers.first).runs.list(thread)
    with httpx.Client(base_url=servers.second.url, headers={"Authorization": f"Bearer {token('cleo')}"}) as cleo:
        one, body = f"/threads/{thread}", {"assistant_id": "mendgraph", "input": {"messages": [("user", "Hi.")]}}
        of_run = f"{one}/runs/{run['run_id']}"
        got = [cleo.get(path).status_code for path in (one, f"{one}/state", f"{one}/history", of_run)]
        got += [cleo.get(path).status_code for path in (f"{of_run}/join", f"{of_run}/stream")]
        got += [cleo.post(f"{one}/runs{end}", json=body).status_code for end in ("", "/wait", "/stream")]
        got += [cleo.post(path, json={}).status_code for path in (f"{of_run}/cancel", f"{one}/history")]
        got += [cleo.patch(one, json={"metadata": {"a": "b"}}).status_code, cleo.delete(one).status_code]
        assert set(got) == {404}
        assert cleo.get(f"{one}/runs").json() == []
        assert cleo.post("/threads", json={"thread_id": thread}).status_code == 422
        assert cleo.post("/threads/search", json={}).json() == []
        of_others = {"config": {"configurable": {"thread_id": thread}}, "checkpoint": {"thread_id": thread}}
        cleos_thread = cleo.post("/threads", json={}).json()["thread_id"]
        for key, value in of_others.items():
            assert cleo.post(f"/threads/{cleos_thread}/runs/wait", json={**body, key: value}).status_code == 422
        [assistant] = cleo.post("/assistants/search", json={}).json()
        assert assistant["graph_id"] == "mendgraph"
        records = [path for server in (servers.first, servers.second) for path in server.folder.glob("data/runs/*")]
        assert any(path.name.startswith("ann") for path in records)
    assert servers.state("ann", servers.first, thread)["values"]["outcome"]["answer"] == "Done."


@slow
def test_concurrent_requests_to_a_thread_run_one_after_the_other(servers: Servers) -> None:
    """A request between the middleware's check and the machine's lock is refused there, and writes nothing."""
    servers.project("ann", "crowd", CALC)
    thread = servers.thread("ann", servers.first)
    servers.model.say(*(Say("Yes?") for _ in range(8)))

    def ask(number: int) -> bool:
        server = (servers.first, servers.second)[number % 2]
        with httpx.Client(base_url=server.url, headers={"Authorization": f"Bearer {token('ann')}"}, timeout=60) as ann:
            body = {"assistant_id": "mendgraph", "input": {"messages": f"{number}"}, "context": {"workspace": "crowd"}}
            answer = ann.post(f"/threads/{thread}/runs/wait", json=body)
            assert answer.status_code in {200, 409}
            return "outcome" in answer.json()

    with ThreadPoolExecutor(8) as people:
        successes = [*people.map(ask, range(8))].count(True)
    assert successes >= 1
    kinds = [message["type"] for message in servers.state("ann", servers.first, thread)["values"]["messages"]]
    assert kinds == ["human", "ai"] * successes


@slow
def test_clients_that_follow_runs_leave_connections_for_others(servers: Servers) -> None:
    servers.project("ann", "followed", CALC)
    thread = servers.thread("ann", servers.first)
    servers.model.say(Stall(reply=Say("never said")))
    run: Any = servers.client("ann", servers.first).runs.create(
        thread, "mendgraph", input=WAIT, context={"workspace": "followed"}
    )
    wait_for(lambda: servers.model.remaining == 0, lambda: servers.first.log)
    with httpx.Client(base_url=servers.first.url, timeout=60) as client, ExitStack() as streams:
        client.headers["Authorization"] = f"Bearer {token('ann')}"
        answers = []
        for _ in range(MOST_OPEN + 1):
            stream = client.stream("GET", f"/threads/{thread}/runs/{run['run_id']}/stream")
            answers.append(streams.enter_context(stream).status_code)
        assert answers == [*[200] * MOST_OPEN, 429]
        assert httpx.get(f"{servers.first.url}/health").status_code == 200
        assert servers.client("cleo", servers.first).threads.search() is not None


@slow
def test_request_without_a_token_is_refused(servers: Servers) -> None:
    for header in ({}, {"Authorization": "Bearer of bad news, for everybody who guesses"}):
        with httpx.Client(base_url=servers.first.url, headers=header) as client:
            answers = [client.get("/threads"), client.post("/assistants/search", json={}), client.get("/docs")]
            answers += [client.post("/threads", json={}), client.get("/store/items", params={"key": "a"})]
            assert {answer.status_code for answer in answers} == {401}
            assert client.get("/health").status_code == 200


@slow
def test_client_cannot_choose_its_identity(servers: Servers) -> None:
    thread = servers.thread("bob", servers.first)
    refused: list[JsonMap] = [
        {"config": {"configurable": {"langgraph_auth_user": {"identity": "ann"}}}},
        {"context": {"langgraph_auth_user": {"identity": "ann"}}},
        {"context": {"thread_id": "another"}},
        {"command": {"update": {"context": {"workspace": "/"}}}},
        {"command": {"goto": "execute_tools"}},
        {"input": {"context": {"workspace": "/"}}},
        {"webhook": "http://127.0.0.1:1/"},
    ]
    with httpx.Client(base_url=servers.first.url, headers={"Authorization": f"Bearer {token('bob')}"}) as bob:
        for more in refused:
            body = {"assistant_id": "mendgraph", "input": {"messages": [("user", "Hi.")]}, **more}
            assert bob.post(f"/threads/{thread}/runs/wait", json=body).status_code == 422, more
        values = {"values": {"context": {"workspace": "/"}}, "as_node": "begin_turn"}
        assert bob.post(f"/threads/{thread}/state", json=values).status_code == 403
        assert bob.post("/assistants", json={"graph_id": "mendgraph"}).status_code == 404
        assert bob.put("/store/items", json={"namespace": ["ann"], "key": "a", "value": {}}).status_code == 404


@slow
def test_no_table_holds_a_secret_and_a_deleted_thread_leaves_no_checkpoint(servers: Servers) -> None:
    """Our tables, the engine's and those of its checkpointer."""
    servers.project("cleo", "secret", CALC)
    thread = servers.thread("cleo", servers.first)
    servers.model.say(Say(f"You said {SECRET}."))
    ended = servers.ask("cleo", servers.first, thread, f"My key is {SECRET}.", workspace="secret")
    assert outcome(ended) == ("FINISHED", "answered")
    assert SECRET not in str(ended)
    forms = (SECRET, SECRET.encode().hex(), thread)
    names = "SELECT format('%I.%I', schemaname, tablename) FROM pg_tables WHERE schemaname IN ('public', 'mendgraph')"
    rows: set[tuple[str, str]] = set()
    with psycopg.connect(servers.database) as operator:
        tables = [str(row[0]) for row in operator.execute(names)]
        for table in tables:
            for form in forms:
                count = sql.SQL("SELECT count(*) FROM {} AS t WHERE t::text LIKE %s").format(sql.SQL(table))
                if operator.execute(count, (f"%{form}%",)).fetchone() != (0,):
                    rows.add((table, form))
    assert {form for _, form in rows} == {thread}
    assert {table for table, _ in rows} > {"public.runs", "public.checkpoints", "public.checkpoint_writes"}
    servers.client("cleo", servers.second).threads.delete(thread)
    with psycopg.connect(servers.database) as operator:
        remaining = operator.execute("SELECT count(*) FROM checkpoints WHERE thread_id = %s", (thread,)).fetchone()
    assert remaining == (0,)


@slow
def test_concurrent_runs_and_tokens_per_day_are_counted_over_all_servers(servers: Servers) -> None:
    servers.project("bob", "busy", CALC)
    threads = [servers.thread("bob", server) for server in (servers.first, servers.second)]
    servers.model.say(Stall(reply=Say("never said")))
    run: Any = servers.client("bob", servers.first).runs.create(
        threads[0], "mendgraph", input=WAIT, context={"workspace": "busy"}
    )
    wait_for(lambda: servers.model.remaining == 0, lambda: servers.first.log)
    refused = servers.ask("bob", servers.second, threads[1], "Hi.", workspace="busy")
    assert outcome(refused) == ("SYSTEM_ERROR", "workspace_busy")
    assert refused["outcome"]["message"] == "bob has 1 run working on these servers, which is the maximum."
    servers.client("bob", servers.first).runs.cancel(threads[0], run["run_id"], wait=True)
    servers.model.say(Say("Hello.", usage=(19_000, 10)))
    assert outcome(servers.ask("bob", servers.second, threads[1], "Hi.", workspace="busy")) == ("FINISHED", "answered")
    spent = servers.ask("bob", servers.first, threads[1], "Once more.", workspace="busy")
    assert outcome(spent) == ("BUDGET_STOP", "day_limit")
