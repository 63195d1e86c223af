import sys

import pytest

from benchmarks.real_model import harness_mendgraph
from benchmarks.real_model.contestants import LIMITS, Contestant, our_contestants, run_task, settled_end, task_digest
from benchmarks.real_model.endpoint import MeasuredEndpoint
from benchmarks.real_model.measured_run import MeasuredRun
from benchmarks.real_model.record import RunEnd
from tests.benchmarks.real_model.samples import call, task
from tests.doubles.scripted_server import Say, ScriptedServer

WRITER = """
import json, sys, urllib.request
asked = json.load(sys.stdin)
body = json.dumps({"model": asked["model"], "messages": [{"role": "user", "content": asked["request"]}]}).encode()
headers = {"Content-Type": "application/json"}
with urllib.request.urlopen(urllib.request.Request(asked["base_url"] + "/chat/completions", body, headers)) as reply:
    said = json.load(reply)["choices"][0]["message"]["content"]
open("hello.txt", "w").write(said)
print(json.dumps({"ended": "done", "answer": str(asked["files"]), "seconds": 1.0, "events": asked.get("options", {})}))
"""


def play(contestant: Contestant, reply: str) -> tuple[object, ...]:
    with ScriptedServer([Say(reply)]) as server, MeasuredEndpoint(lambda: server.base_url, "m") as endpoint:
        record = run_task(contestant, task(), endpoint)
    return record.problem, record.changed_files, record.end, len(record.calls), server.requests[0]["temperature"]


@pytest.mark.parametrize(("reply", "problem"), [("Hello\n", None), ("Bye\n", "hello.txt says something else")])
def test_a_run_is_judged_by_its_files(reply: str, problem: str | None) -> None:
    contestant = Contestant("writer", "default", [sys.executable, "-c", WRITER])
    end = RunEnd(ended="done", answer="['hello.txt', 'other.txt']", seconds=1.0)
    assert play(contestant, reply) == (problem, ("hello.txt",), end, 1, 0)


def test_options_reach_the_harness() -> None:
    contestant = Contestant("writer", "x", [sys.executable, "-c", WRITER], {"seed": 3})
    with ScriptedServer([Say("a")]) as server, MeasuredEndpoint(lambda: server.base_url, "m") as endpoint:
        record = run_task(contestant, task(), endpoint)
    assert (record.label, record.options, record.end.events) == ("x", {"seed": 3}, {"seed": 3})
    assert (record.task, record.kind, record.half, record.digest) == (
        "greeting",
        "other_files",
        "dev",
        task_digest(task()),
    )


@pytest.mark.parametrize(
    ("refused", "typed", "ended"),
    [
        ("limit_calls", False, ("limit_calls", "")),
        ("limit_calls", True, ("error", "RateLimitError")),
        ("", False, ("error", "RateLimitError")),
    ],
)
def test_a_rival_that_was_refused_a_call_ended_on_that_limit(refused: str, typed: bool, ended: tuple[str, str]) -> None:
    run = MeasuredRun(1, LIMITS, True, lambda: 0.0)
    run.refused = refused
    run.settle(call(seconds=3.0, replayed=True))
    end = settled_end(RunEnd(ended="error", reason="RateLimitError", seconds=1.0), run, typed=typed)
    assert (end.ended, end.reason, end.seconds) == (*ended, 4.0)


def test_an_ablation_is_ours_without_each_means(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(harness_mendgraph, "SWITCHES", (("no_a", {"a": False}), ("no_b", {"b": 0})))
    everyone = our_contestants("default", {"seed": 2}, ablate=True)
    assert [(each.harness, each.label, each.options, each.greedy) for each in everyone] == [
        ("mendgraph", "default", {"seed": 2}, False),
        ("mendgraph", "no_a", {"seed": 2, "a": False}, False),
        ("mendgraph", "no_b", {"seed": 2, "b": 0}, False),
    ]
    assert [each.label for each in our_contestants("x", {}, ablate=True)] == ["x", "x,no_a", "x,no_b"]
    assert len(our_contestants("default", {}, ablate=False)) == 1
