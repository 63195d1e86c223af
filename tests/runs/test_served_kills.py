"""A run survives its server: another one takes it up unasked, and whoever waited for it hears its end there."""

from typing import Any

from tests.doubles.replies import Say, Stall
from tests.runs.playing import changed_files
from tests.runs.scenarios_of_work import CALC, EDIT, MENDED, READ, TASK
from tests.runs.scenario import use
from tests.runs.servers import Servers, wait_for


def test_a_killed_servers_run_is_taken_up(servers: Servers) -> None:
    folder = servers.project("ann", "alive", CALC)
    thread = servers.thread("ann", servers.first)
    servers.model.say(use(READ), Stall(reply=Say("never said")))
    given: Any = {"messages": [("user", TASK)]}
    first, second = servers.client("ann", servers.first), servers.client("ann", servers.second)
    run: Any = first.runs.create(thread, "mendgraph", input=given, context={"workspace": "alive"})
    wait_for(lambda: servers.model.remaining == 0, lambda: servers.first.log)
    servers.model.say(use(EDIT), Say("add now adds."))
    servers.first.kill()
    parts = [*second.runs.join_stream(thread, run["run_id"])]
    print([(each.event, list(each.data or ())[:3]) for each in parts])
    ended: Any = second.runs.join(thread, run["run_id"])
    assert ended["outcome"]["answer"] == "add now adds.", (ended, servers.second.log)
    assert changed_files(folder, CALC) == {"calc.py": MENDED}
    print([(each["status"], each["run_id"]) for each in second.runs.list(thread)])
    servers.first.begin()
    servers.first.wait()
    assert servers.first.log == "", servers.first.log
