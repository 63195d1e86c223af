import os
import sys
from pathlib import Path

import pytest

from benchmarks.real_model.child import clean_environment, read_end, run_child
from benchmarks.real_model.record import RunEnd
from mendgraph.nodes.records import JsonMap


def play(source: str, tmp_path: Path, timeout_s: float = 60.0, request: JsonMap | None = None) -> RunEnd:
    return run_child([sys.executable, "-c", source], request or {}, tmp_path, {"PATH": os.environ["PATH"]}, timeout_s)


def test_a_child_beyond_its_time_is_killed_with_all_that_it_started(tmp_path: Path) -> None:
    # Its own child holds the pipes: only when both are gone does the call return.
    end = play("import time, subprocess, sys; subprocess.Popen(['sleep', '600']); time.sleep(600)", tmp_path, 0.5)
    assert end == RunEnd(ended="limit_time", reason="killed after 0.5 s", seconds=0.5)


def test_a_child_that_fails_has_its_last_words(tmp_path: Path) -> None:
    end = play("raise SystemExit('no such model')", tmp_path)
    assert end == RunEnd(ended="error", reason="exit code 1", error="no such model")


@pytest.mark.parametrize("said", ["", "hello", '{"ended": 1}', '{"no": "end"}', "[]"])
def test_a_child_that_says_nothing_of_use_has_failed(said: str) -> None:
    assert read_end(said, "words", 0) == RunEnd(ended="error", reason="it ended without an answer", error="words")


def test_the_child_is_in_its_workspace_with_this_environment_alone(tmp_path: Path) -> None:
    source = "import json, os; print(json.dumps({'ended': os.getcwd(), 'reason': str('HOME' in os.environ)}))"
    assert play(source, tmp_path) == RunEnd(ended=str(tmp_path), reason="False")


def test_no_variable_steers_a_harness(tmp_path: Path) -> None:
    ours = {"OPENAI_API_KEY": "k", "aider_model": "m", "PYTHONPATH": "p", "https_proxy": "h", "LANG": "C", "HOME": "/x"}
    assert clean_environment(ours, tmp_path, {"PYTHONPATH": "q"}) == {
        "LANG": "C",
        "HOME": str(tmp_path),
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
        "XDG_DATA_HOME": str(tmp_path / "data"),
        "NO_PROXY": "127.0.0.1",
        "PYTHONPATH": "q",
    }
