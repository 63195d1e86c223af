import json
from pathlib import Path

from benchmarks.real_model.rivals.run_aider import arguments, metadata


def test_the_command_line_names_the_files_and_keeps_the_workspace_clean() -> None:
    asked = {"request": "Fix a.py", "files": ["a.py", "b.py"], "model": "m"}
    line = arguments(asked, Path("/home"))
    assert line[-6:] == ["--model", "openai/m", "--message", "Fix a.py", "--", "a.py"]
    assert line[:2] == ["--edit-format", "whole"]
    kept = ["input-history-file", "chat-history-file", "llm-history-file", "model-metadata-file"]
    assert [line[line.index(f"--{name}") + 1] for name in kept] == [f"/home/{name}" for name in kept]


def test_aider_is_told_of_the_model_that_it_does_not_know() -> None:
    assert list(json.loads(metadata("m"))) == ["openai/m"]
