import json
import pkgutil
import subprocess
from pathlib import Path

import pytest

from benchmarks.real_model.child import clean_environment
from benchmarks.real_model.harness_mendgraph import WITHOUT, Request, command, end_of
from benchmarks.real_model.record import RunEnd
from mendgraph.graph.runs.events import Ended, Event, HealingBegan, Rescued, Text, Traced
from mendgraph.nodes.records import Outcome, OutcomeKind, StopReason
from tests.doubles.scripted_server import Say, ScriptedServer

USAGE = {"replies_asked_again": 3, "replies_rescued": 2, "total_calls": 4}
FINISHED = Ended(
    Outcome(kind=OutcomeKind.FINISHED, reason=StopReason.ANSWERED, message="It is 4.", answer="It is 4.", usage=USAGE)
)
STOPPED = Ended(
    Outcome(
        kind=OutcomeKind.SYSTEM_ERROR, reason=StopReason.LOOP_PERSISTED, message="Again.", diagnostics=("read a.py",)
    )
)
TRACED = Traced("tool.invoke.start", {}, "r", "1", 0)


@pytest.mark.parametrize(
    ("events", "end"),
    [
        (
            [Text("a"), HealingBegan(1, ()), HealingBegan(2, ()), Rescued(()), TRACED, TRACED, FINISHED],
            RunEnd(
                ended="FINISHED",
                reason="answered",
                answer="It is 4.",
                first_line="FINISHED (answered): no file changed; the answer was not checked",
                checked="none",
                seconds=1.5,
                healed=3,
                rescued=2,
                events={"HealingBegan": 2, "Rescued": 1, "tool.invoke.start": 2},
            ),
        ),
        (
            [STOPPED],
            RunEnd(
                ended="SYSTEM_ERROR",
                reason="loop_persisted",
                error="Again. read a.py",
                first_line="SYSTEM_ERROR (loop_persisted): Again.",
                checked="none",
                seconds=1.5,
            ),
        ),
    ],
)
def test_events_come_to_an_end(events: list[Event], end: RunEnd) -> None:
    assert end_of(events, 1.5) == end


def test_as_a_program_it_asks_the_endpoint_in_the_embedded_models_way(tmp_path: Path) -> None:
    workspace, home = tmp_path / "w", tmp_path / "home"
    workspace.mkdir()
    home.mkdir()
    environment = clean_environment({}, home, {"MENDGRAPH_DATA_DIR": str(home / "runs")})
    with ScriptedServer(then=lambda _: Say("It is 4.")) as server:
        asked = Request(
            request="What is 2 + 2?",
            workspace=str(workspace),
            base_url=server.base_url,
            model="qwen2.5-coder-1.5b",
            files=(),
        )
        done = subprocess.run(
            command(), input=asked.model_dump_json(), env=environment, capture_output=True, text=True, check=False
        )
    assert done.returncode == 0, done.stderr
    end = RunEnd.model_validate(json.loads(done.stdout.splitlines()[-1]))
    assert (end.ended, end.answer) == ("FINISHED", "It is 4.")
    (sent,) = server.requests
    assert (sent["model"], sent["seed"], "tools" in sent) == ("qwen2.5-coder-1.5b", 1, False)


@pytest.mark.parametrize("target", [target for each in WITHOUT.values() for target, _ in each])
def test_what_an_ablation_takes_out_is_there(target: str) -> None:
    pkgutil.resolve_name(target)
