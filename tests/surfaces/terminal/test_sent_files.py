"""Files from other people: whatever they contain, a command reports the problem in limited time and memory."""

import os
from pathlib import Path

import pytest

from mendgraph.graph import cli
from mendgraph.graph.configuration.loading import CONFIG_VARIABLE, MOST_PROBLEMS
from tests.extent import slow

NO_FILES = ("pipe", "endless", "circle", "folder", "sparse")


def make(path: Path, kind: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    match kind:
        case "pipe":
            os.mkfifo(path)
        case "endless":
            path.symlink_to("/dev/zero")
        case "circle":
            path.symlink_to(path.name)
        case "folder":
            path.mkdir()
        case _:
            path.touch()
            os.truncate(path, 8 << 30)


def run_command(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    code = cli.main(words)
    error = capsys.readouterr().err
    assert "bug" not in error
    return code, error


PLACES = {
    "t.jsonl": ("batch", "t.jsonl"),
    "t.batch/batch.json": ("batch", "good.jsonl", "--out", "t.batch"),
    "t.batch/begun.jsonl": ("batch", "good.jsonl", "--out", "t.batch"),
    "t.batch/results.jsonl": ("batch", "good.jsonl", "--out", "t.batch"),
    "s.toml": ("config",),
    ".mendgraph.toml": ("config",),
}


@pytest.mark.parametrize("kind", NO_FILES)
def test_path_that_is_not_a_regular_file_is_refused_without_waiting(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    for number, (name, words) in enumerate(PLACES.items()):
        folder = tmp_path / str(number)
        (folder / "t.batch").mkdir(parents=True)
        monkeypatch.chdir(folder)
        (folder / "t.batch" / "batch.json").write_text('{"schema": 1, "batch": "0123456789ab"}')
        (folder / "good.jsonl").write_text(f'{{"id": "a", "prompt": "x", "workspace": "{folder}"}}\n')
        monkeypatch.setenv(CONFIG_VARIABLE, str(folder / "s.toml") if name == "s.toml" else "")
        (folder / name).unlink(missing_ok=True)
        make(folder / name, kind)
        code, error = run_command(capsys, *words)
        assert code in {2, 4}, name
        assert Path(name).name in error or f"{folder}/t.batch'" in error
        assert os.path.lexists(folder / name)


@slow
def test_only_the_first_problems_of_a_large_file_are_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("t.jsonl").write_text("[1]\n" * 100_000)
    Path("s.toml").write_text("".join(f"k{number} = 1\n" for number in range(60_000)))
    for words, settings in ((("batch", "t.jsonl"), ""), (("config",), str(tmp_path / "s.toml"))):
        monkeypatch.setenv(CONFIG_VARIABLE, settings)
        code, error = run_command(capsys, *words)
        assert (code, error.count("\n")) == (2, MOST_PROBLEMS + 1)
        assert error.endswith(f"there may be more: the first {MOST_PROBLEMS} problems are shown\n")
