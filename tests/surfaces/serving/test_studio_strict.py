"""A thread's records at a server that loads only LangGraph's own types: others are not loaded, with a warning."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.doubles.replies import Say
from tests.doubles.tool_use import use
from tests.extent import slow
from tests.scenarios.sample_repair import CALC, DONE, EDIT, MENDED, READ, TASK
from tests.surfaces.serving.studio import Studio, client_of, native_server, operator_server
from tests.vocabulary import JsonMap
from tests.workspace_files import changed_files, write_files

pytestmark = [pytest.mark.studio, slow]

SECRET: tuple[str, JsonMap] = ("read_file", {"path": ".env"})
PLAN: tuple[str, JsonMap] = ("update_plan", {"steps": [{"title": "mend"}]})
NEW: tuple[str, JsonMap] = ("write_file", {"path": "new.txt", "content": "one\n"})
FILES = CALC | {".env": "TOKEN=1\n"}
MALFORMED = Say("tool: read_file({")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Studio]:
    """A server of its own, as LangGraph warns of each type once in a process."""
    with (
        operator_server(tmp_path, tmp_path / "config.toml", LANGGRAPH_STRICT_MSGPACK="true") as dev,
        client_of(dev) as client,
    ):
        yield client


def test_records_survive_a_server_that_loads_only_langgraphs_types(server: Studio, tmp_path: Path) -> None:
    """A denial, a healing, a loop, an answered and an open approval request, a fork and a written message."""
    for graph in ("mendgraph", "own"):
        folder, thread = tmp_path / graph, server.thread()["thread_id"]
        write_files(folder, FILES)
        read = use(READ)
        replies = (use(SECRET, PLAN), MALFORMED, read, read, read, use(EDIT), DONE, use(NEW), Say("It adds."))
        with native_server(*replies, Say("You are welcome."), Say("Bye.")) as model:
            context: Any = server.context(folder, model, {"mode": "ask"})

            def go(**what: Any) -> Any:
                ended: Any = server.client.runs.wait(thread, graph, context=context, **what)  # noqa: B023 - of this round
                return ended.get("outcome")

            go(input=server.request(TASK))
            assert server.question({"thread_id": thread})["calls"][0]["path"] == "calc.py"
            mended = go(command={"resume": "approve"})
            assert (mended["kind"], changed_files(folder, FILES)) == ("FINISHED", {"calc.py": MENDED})
            go(input=server.request("Once more."))
            assert server.client.threads.get_state(thread)["next"] == ["guard"]
            assert go(input=server.request("Never mind."))["answer"] == "It adds."
            past: Any = server.client.threads.get_history(thread, limit=100)
            point = next(snapshot for snapshot in past if snapshot["next"] == ["call_model"])
            assert go(input=None, checkpoint=point["checkpoint"])["answer"] == "You are welcome."
            server.client.threads.update_state(thread, server.request("Good bye."), as_node="begin_turn")
            assert go(input=None)["answer"] == "Bye."
            assert model.remaining == 0
    assert server.complaints() == []
