"""What a shell may offer for each place of a line of ours."""

from typing import Annotated

import pytest
import typer
from hypothesis import given, strategies as st

from graph.cli import app
from graph.terminal.shell_words import Offer, offers

RUNS = [("3f2a9c01" + "0" * 24, "Fix add. Then more"), ("ab" * 16, "Look\x1b[2J")]
EVERYWHERE = frozenset({"root", "as_json"})
TREE = typer.main.get_command(app)
roots: list[str] = []


def offered(line: str) -> list[Offer]:
    *words, word = line.split(" ")
    return offers(TREE, words, word, lambda root: roots.append(root) or RUNS, EVERYWHERE)  # type: ignore[func-returns-value]


def values(line: str) -> list[str]:
    return [offer.value for offer in offered(line)]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("und", ["undo"]),
        ("--root x und", ["undo"]),
        ("undo ", ["3f2a9c01", "abababab"]),
        ("undo 3", ["3f2a9c01"]),
        ("undo 3f2a9c010", [RUNS[0][0]]),
        ("undo 3f2a9c01 ", []),
        ("undo --from-step 2 a", ["abababab"]),
        ("undo --from-step ", []),
        ("undo --s", ["--skip-changed"]),
        ("undo --skip-changed --s", []),
        ("undo --mo", []),
        ("undo --jso", ["--json"]),
        ("runs sh", ["show"]),
        ("runs show 3", ["3f2a9c01"]),
        ("cassette from-run a", ["abababab"]),
        ("chat --run a", ["abababab"]),
        ("chat --run=a", ["--run=abababab"]),
        ("chat --mod", ["--mode", "--model"]),
        ("--mode a", ["ask", "auto"]),
        ("--mode=a", ["--mode=ask", "--mode=auto"]),
        ("fix --mode ", ["read-only", "ask", "auto"]),
        ("--mode ask --mod", ["--model"]),
        ("--wrap-up --no-w", ["--no-workspace-config"]),
        ("fix ", []),
        ("run ", []),
        ("fix undo ", []),
        ("-- fix --mod", []),
        ("model p", ["pull"]),
        ("model --js", []),
        ("schema ", ["json", "json-lines"]),
        ("schema json-", ["json-lines"]),
        ("undo --he", ["--help"]),
        ("--unknown ", []),
        ("--unknown=", []),
    ],
)
def test_what_may_stand_there(line: str, expected: list[str]) -> None:
    found = values(line)
    assert found == expected or (line == "--unknown " and "undo" in found)


def test_what_is_hidden_is_not_offered() -> None:
    own = typer.Typer(add_completion=False)

    @own.command()
    def seen(secret: Annotated[str, typer.Option(hidden=True)] = "") -> None:
        """Look. Then more."""

    @own.command(hidden=True)
    def unseen() -> None:
        """Nobody is told of it."""

    tree = typer.main.get_command(own)
    assert offers(tree, [], "", lambda _: [], ()) == [Offer("plain", "seen", "Look")]
    assert offers(tree, ["seen"], "-", lambda _: [], ()) == [Offer("plain", "--help", "Show this message and exit.")]


def test_names_of_files_are_the_shells_own() -> None:
    assert offered("--root ") == offered("cassette lint ") == [Offer("dir")]


def test_runs_are_those_of_the_named_folder_with_their_tasks() -> None:
    roots.clear()
    assert offered("--root a undo ") == [
        Offer("plain", "3f2a9c01", "Fix add"),
        Offer("plain", "abababab", "Look\\x1b[2J"),
    ]
    offered("undo --root=b ")
    offered("undo ")
    assert roots == ["a", "b", "."]


def test_a_name_that_a_shell_would_take_apart_is_not_offered() -> None:
    assert [each.value for each in offers(TREE, ["undo"], "", lambda _: [("my $(run)", ""), ("mine", "")], ())] == [
        "mine"
    ]


@given(
    st.lists(
        st.sampled_from(["--json", "--root=b", "--mode", "a", "run", "chat", "undo", "-", "--", "--x", "model", ""])
    )
)
def test_every_line_has_an_answer(words: list[str]) -> None:
    for offer in offered(" ".join([*words, ""])):
        assert offer.kind in {"plain", "dir", "file"}
        assert (offer.value + offer.help).isprintable()
