"""What Studio shows of a run: guard's verdicts, healing, loop control. And nothing holds up the server meanwhile."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from mendgraph.nodes.execute_tools.processes.bubblewrap import sandbox_problem
from mendgraph.nodes.records import JsonMap
from tests.doubles.replies import Say
from tests.runs.playing import changed_files, write_files
from tests.runs.scenario import use
from tests.runs.scenarios_of_work import CALC, DONE, EDIT, MENDED, READ, TASK
from tests.runs.studio import Studio, told

pytestmark = pytest.mark.studio

SECRET: tuple[str, JsonMap] = ("read_file", {"path": ".env"})
RUN: tuple[str, JsonMap] = ("run_command", {"argv": ["true"]})
SEARCH: tuple[str, JsonMap] = ("search_files", {"pattern": "return"})


def test_verdicts_healing_and_loops_are_told_in_words(studio: Studio, tmp_path: Path) -> None:
    write_files(tmp_path, CALC | {".env": "TOKEN=1\n"})
    thread = studio.thread()
    replies = (use(SECRET), Say("tool: read_file({"), use(READ), use(READ), use(READ), Say("It subtracts."))
    with told(*replies) as model:
        ended = studio.run(thread, tmp_path, model, input=studio.request(TASK))
    past: Any = studio.client.threads.get_history(thread["thread_id"], limit=100)
    seen = [state["values"] for state in reversed(past)]
    denied = [each for values in seen for each in values.get("verdicts") or [] if each["kind"] == "deny"]
    assert {(each["rule"], each["path"], each["error"]["code"]) for each in denied} >= {
        ("env_file", ".env", "permission_denied")
    }
    [healing] = ended_values(seen, "healing_attempts")
    assert "MISSING_TOOL_PREFIX" in healing["corrective_prompt"]
    assert healing["errors"][0]["line_content"] == "tool: read_file({"
    loops = dict.fromkeys(values["loop"]["verdict"] for values in seen if values.get("loop"))
    assert list(loops) == ["fresh", "override"]
    assert ended["outcome"]["answer"] == "It subtracts."
    assert studio.complaints() == []


def test_nothing_blocks_the_server(studio: Studio, tmp_path: Path) -> None:
    """A search, an edit and a command that a person approves, and the embedded model, which is not there."""

    def worked(folder: Path) -> str:
        write_files(folder, CALC)
        thread = studio.thread()
        run = [] if sandbox_problem() else [RUN]
        checked = {"mode": "ask", "evidence": True, "read_ahead": True, "offer": "all", "allowed_programs": ["true"]}
        with told(use(READ, SEARCH), use(EDIT, *run), DONE, Say("You are welcome.")) as model:
            studio.run(thread, folder, model, input=studio.request(TASK), context=checked)
            ended: Any = studio.client.runs.wait(thread["thread_id"], "mendgraph", command={"resume": "approve"})
        return f"{ended['outcome']['answer']} {changed_files(folder, CALC) == {'calc.py': MENDED}}"

    def without_model(folder: Path) -> str:
        folder.mkdir()
        with told() as unused:
            ended = studio.run(
                studio.thread(),
                folder,
                unused,
                input=studio.request(TASK),
                context={"model": "local", "base_url": None},
            )
        return str(ended["outcome"]["reason"])

    with ThreadPoolExecutor(3) as people:
        runs = [people.submit(worked, tmp_path / name) for name in ("one", "two")]
        runs.append(people.submit(without_model, tmp_path / "three"))
        assert [run.result(120) for run in runs] == ["add now adds. True", "add now adds. True", "provider_failed"]
    assert studio.complaints() == []


def ended_values(seen: list[Any], channel: str) -> list[Any]:
    """What a channel held at the end."""
    return list(seen[-1][channel])
