"""Options may stand before or after the task, and a task needs no command."""

import pytest
from hypothesis import given, strategies as st

from graph.terminal.word_order import in_order

COMMANDS = {"run", "chat", "undo", "model"}
GENERAL = {"--root": True, "--model": True, "--json": False, "--version": False}


@pytest.mark.parametrize(
    ("line", "ordered"),
    [
        ("", ""),
        ("task", "run -- task"),
        ("run task", "run -- task"),
        ("chat", "chat"),
        ("task --json --root a", "--json --root a run -- task"),
        ("--root a task --json", "--root a --json run -- task"),
        ("--root=a task", "--root=a run -- task"),
        ("--model x chat", "--model x chat"),
        ("chat --model chat", "--model chat chat"),
        ("task run", "run -- task run"),
        ("-", "run -- -"),
        ("--json", "--json run"),
        ("--help", "--help"),
        ("--json --version", "--json --version"),
        ("run --help", "--help run"),
        ("-- --task --json", "run -- --task --json"),
        ("--json -- run it", "--json run -- it"),
        ("--root", "--root"),
        ("task --json --root", "--json --root"),
        ("model pull --root a", "model pull --root a"),
        ("--json model status", "--json model status"),
        ("task model", "run -- task model"),
        ("--unknown task", "--unknown run -- task"),
        ("undo a --skip --json", "--json undo a --skip"),
        ("undo --at 3 a --root b", "--root b undo --at 3 a"),
        ("undo a --at=3 --root=b", "--root=b undo a --at=3"),
        ("--json undo a --help", "--json undo a --help"),
        ("chat --run a --model b", "--model b chat --run a"),
        ("undo a --root", "--root"),
        ("undo -- --at --json", "undo -- --at --json"),
        ("-- undo --at", "undo -- --at"),
        ("--at 3 undo a", "--at run -- 3 undo a"),
    ],
)
def test_the_order_of_words(line: str, ordered: str) -> None:
    assert in_order(line.split(), COMMANDS, GENERAL) == ordered.split()


@given(st.lists(st.sampled_from(["--json", "--root=b", "a", "run", "chat", "undo", "-", "--help", "--unknown"])))
def test_no_word_is_lost(arguments: list[str]) -> None:
    ordered = in_order(arguments, COMMANDS, GENERAL)
    for added in ("--", "run"):
        if len(ordered) > len(arguments) and added in ordered:
            ordered.remove(added)
    assert sorted(ordered) == sorted(arguments)
