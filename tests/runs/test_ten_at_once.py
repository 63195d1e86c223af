"""Ten runs are started in one workspace at once: one works, nine say who does."""

import json
import signal
from contextlib import ExitStack
from pathlib import Path
from threading import Thread

from tests.runs.playing import write_files
from tests.runs.stopping import Process, mendgraph, stalled_endpoint

TEN = 10


def test_one_works_and_nine_say_who_does(tmp_path: Path) -> None:
    root = tmp_path / "root"
    write_files(root, {"a.py": "a = 1\n"})
    with stalled_endpoint("I think hard") as base_url, ExitStack() as stack:
        runs = [stack.enter_context(mendgraph(root, base_url, "--json", "Look.")) for _ in range(TEN)]
        ended: list[tuple[Process, int]] = []
        waiting = [Thread(target=lambda run=run: ended.append((run, run.end()))) for run in runs]
        for thread in waiting:
            thread.start()
        while len(ended) < TEN - 1:
            for thread in waiting:
                thread.join(0.02)
        (winner,) = [run for run in runs if run not in [refused for refused, _ in ended]]
        told = [json.loads(run.out) for run, _ in ended]
        winner.send(signal.SIGINT)
        for thread in waiting:
            thread.join()
    assert [code for _, code in ended] == [4] * 9 + [3]
    assert {answer["outcome"]["reason"] for answer in told} == {"workspace_busy"}
    assert {f"process {winner.pid}" in answer["outcome"]["message"] for answer in told} == {True}
    assert json.loads(winner.out)["outcome"]["reason"] == "cancelled"
