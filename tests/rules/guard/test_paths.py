from pathlib import Path, PurePosixPath

from mendgraph.nodes.guard.file_rules import climbs, folded, folded_parts
from mendgraph.nodes.guard.policy import shown, workspace_relative as relative
from tests.row_tables import rows

ROOT = "/home/dev"


@rows(
    ("calc.py", "calc.py"),
    ("./src//calc.py", "src/calc.py"),
    ("src/../calc.py", "calc.py"),
    ("/home/dev", "."),
    ("/home/dev/src/a.py", "src/a.py"),
    ("//home/dev/a.py", "a.py"),
    ("../dev/a.py", "a.py"),
    ("./~/a.py", "~/a.py"),
    ("~backup", "~backup"),
    ("..", None),
    ("src/../../other", None),
    ("/home/dev-evil/a.py", None),
    ("/etc/hosts", None),
    ("~", None),
    ("~/a.py", None),
)
def test_path_is_resolved_relative_to_the_workspace(path: str, expected: str | None) -> None:
    assert relative(path, ROOT) == expected


@rows(
    (".ENV", ".env"),
    (".env.", ".env"),
    (".env\u3000", ".env"),
    (".e\u200dnv", ".env"),
    ("\u202e.env", ".env"),
    ("\uff0eenv", ".env"),
    (".\uff25\uff2e\uff36", ".env"),
    ("\u212aey", "key"),
    (" .env", " .env"),
    ("stra\u00dfe", "strasse"),
)
def test_equivalent_spellings_are_folded_to_one_name(component: str, expected: str) -> None:
    assert folded(component) == expected


@rows(
    ("a/./B/../c", ("a", "c"), False),
    ("a\\.GIT\\config", ("a", ".git", "config"), False),
    ("../../etc/x", ("etc", "x"), True),
    ("a/../../x", ("x",), True),
    ("/../etc/x", ("etc", "x"), False),
    (".", (), False),
)
def test_path_is_split_into_folded_parts(path: str, parts: tuple[str, ...], leaves: bool) -> None:
    assert (folded_parts(Path(path)), climbs(PurePosixPath(path))) == (parts, leaves)


def test_message_shows_200_characters_of_a_path() -> None:
    assert [shown("x" * length) for length in (200, 201)] == ["x" * 200, "x" * 200 + "..."]
