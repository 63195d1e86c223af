"""Files that a person was sent: whatever is in them, a command says what is wrong, in bounded time and memory."""

import os
from pathlib import Path

import pytest

from mendgraph.graph import cli
from mendgraph.graph.configuration.loading import CONFIG_VARIABLE, MOST_PROBLEMS

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


def told(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    code = cli.main(words)
    error = capsys.readouterr().err
    assert "bug" not in error
    return code, error


@pytest.mark.parametrize("kind", NO_FILES)
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("t.jsonl", ("batch", "t.jsonl")),
        ("t.batch/batch.json", ("batch", "good.jsonl")),
        ("t.batch/begun.jsonl", ("batch", "good.jsonl")),
        ("t.batch/results.jsonl", ("batch", "good.jsonl")),
        ("s.toml", ("config",)),
        (".mendgraph.toml", ("config",)),
    ],
)
def test_what_is_no_file_of_its_kind_is_not_waited_for(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    name: str,
    words: tuple[str, ...],
) -> None:
    monkeypatch.chdir(tmp_path)
    if name.startswith("t.batch/"):
        (tmp_path / "t.batch").mkdir()
        (tmp_path / "t.batch" / "batch.json").write_text('{"schema": 1, "batch": "0123456789ab"}')
        (tmp_path / name).unlink(missing_ok=True)
        words = (*words, "--out", "t.batch")
    (tmp_path / "good.jsonl").write_text(f'{{"id": "a", "prompt": "x", "workspace": "{tmp_path}"}}\n')
    monkeypatch.setenv(CONFIG_VARIABLE, str(tmp_path / "s.toml") if name == "s.toml" else "")
    make(tmp_path / name, kind)
    code, error = told(capsys, *words)
    assert code in {2, 4}
    assert Path(name).name in error or f"{tmp_path}/t.batch'" in error
    assert os.path.lexists(tmp_path / name)


def test_what_is_wrong_with_a_large_file_is_told_of_its_beginning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("t.jsonl").write_text("[1]\n" * 100_000)
    Path("s.toml").write_text("".join(f"k{number} = 1\n" for number in range(60_000)))
    for words, settings in ((("batch", "t.jsonl"), ""), (("config",), str(tmp_path / "s.toml"))):
        monkeypatch.setenv(CONFIG_VARIABLE, settings)
        code, error = told(capsys, *words)
        assert (code, error.count("\n")) == (2, MOST_PROBLEMS + 1)
        assert error.endswith(f"there may be more: the first {MOST_PROBLEMS} problems are told\n")
