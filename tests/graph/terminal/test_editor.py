"""The editor gets the text in a file of its own, and what it leaves there comes back."""

import stat
from pathlib import Path

import pytest

from graph.terminal.editor import columns, in_editor


def script(folder: Path, body: str) -> str:
    path = folder / "my editor"
    path.write_text(f"#!/bin/sh\n{body}\n", encoding="utf-8")
    path.chmod(stat.S_IRWXU)
    return f"'{path}' --wait"


def test_the_text_comes_back_as_it_was_left(tmp_path: Path) -> None:
    editor = script(
        tmp_path, f'ls -l "$2" > {tmp_path}/mode; echo "$2" > {tmp_path}/name; echo "new: $(cat "$2")" > "$2"'
    )
    assert in_editor({"EDITOR": editor}, "old") == "new: old\n"
    name = (tmp_path / "name").read_text(encoding="utf-8").strip()
    assert name.endswith("/arguments.json")
    assert not Path(name).parent.exists()
    assert in_editor({"VISUAL": editor, "EDITOR": "false"}, "old") == "new: old\n"


def test_it_does_not_learn_where_the_shared_store_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MENDGRAPH_STORE_URL", "postgresql://u:plum-51-orchard@h/runs")
    editor = script(tmp_path, 'env > "$2"')
    assert "MENDGRAPH_STORE_URL" not in (in_editor({"EDITOR": editor}, "old") or "MENDGRAPH_STORE_URL")


@pytest.mark.parametrize("editor", ["", "   ", "'", "false", "/nowhere/to/be/found"])
def test_no_editor_and_one_that_fails_give_nothing(editor: str) -> None:
    assert in_editor({"EDITOR": editor}, "old") is None


@pytest.mark.parametrize("body", ['rm "$2"', "printf '\\377' > \"$2\"", 'truncate -s 11000000 "$2"'])
def test_what_cannot_be_read_back_gives_nothing(tmp_path: Path, body: str) -> None:
    assert in_editor({"EDITOR": script(tmp_path, body)}, "old") is None


def test_the_width_is_that_of_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    assert columns() == 40
