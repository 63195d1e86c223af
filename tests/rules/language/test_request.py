from mendgraph.nodes.language.request import Request, read_request
from tests.row_tables import rows

NAMES = frozenset(
    {"word_count", "load", "save", "Foo", "Cart", "Cart.total", "Cart.size", "ROLES", "admin", "items", "json", "main"}
)
TOTALS = frozenset({"total", "Cart", "Cart.total", "A.size", "B.size"})


@rows(
    ("Remove the unused function word_count from report.py", "src/report.py", {"word_count"}),
    ("Remove the unused function word_count from report.py", "other.py", set()),
    ("Please delete load() and save().", "", {"load", "save"}),
    ("Drop ROLES: nothing uses it.", "", {"ROLES"}),
    ("Remove io.load", "io.py", {"load"}),
    ("Remove Cart.total", "", {"Cart.total"}),
    ("Remove the unused import json from a.py", "a.py", {"json"}),
    ("Remove word_count's docstring", "", set()),
    ("Don't remove load.", "", set()),
    ("Remove 3 items", "", set()),
    ("Fix main without removing load", "", set()),
    ("remove admin from ROLES", "", set()),
    ("Remove duplicates from items", "", set()),
    ("Remove load calls from main", "", set()),
    ("Remove the argument admin of load", "", set()),
)
def test_requested_deletions_are_read(task: str, path: str, names: set[str]) -> None:
    assert read_request(task).deletions(NAMES, path) == names


@rows(
    ("Delete total", {"total"}),
    ("Delete the method total", {"Cart.total"}),
    ("Delete total from Cart", {"Cart.total"}),
    ("Delete size", set()),
    ("Delete size from B and total", {"B.size"}),
)
def test_method_and_function_of_the_same_name_are_distinguished(task: str, names: set[str]) -> None:
    assert read_request(task).deletions(TOTALS) == names


@rows(
    ("Rename the function load to load_config in settings.py and update app.py.", {"load": "load_config"}),
    ("Rename load() in settings.py to load_config everywhere", {"load": "load_config"}),
    ("Please rename function `calc` in `calc.py` to `compute`, and update callers", {"calc": "compute"}),
    ("Rename Cart.total to Cart.sum_up.", {"total": "sum_up"}),
    ("Rename x to y; rename z to w", {"x": "y", "z": "w"}),
    ("Do not rename load to y", {}),
    ("Rename load to class", {}),
)
def test_requested_renames_are_read(task: str, renames: dict[str, str]) -> None:
    assert read_request(task).renames == renames


@rows(
    ("Move `load_config` from app.py to config.py", [("load_config", "app.py", "config.py", True)]),
    ("move the class Cart into its own module shop/cart.py.", [("Cart", "", "shop/cart.py", True)]),
    ("Put the function parse in parser.py and import it from there", [("parse", "", "parser.py", True)]),
    (
        "Move load and save out of io.py and into `store.py`",
        [(name, "io.py", "store.py", False) for name in ("load", "save")],
    ),
    ("Move load in app.py to config.py", [("load", "app.py", "config.py", False)]),
    *[
        (task, [])
        for task in (
            "Put slug into slug.py. slug('A') gives 'a'.",
            "Do not move load from app.py to config.py",
            "How do I move load from app.py to config.py",
            "Move load from app.py to config.py, and keep an alias",
            "Move Cart.total from cart.py to money.py",
            "Move app.py to src/app.py",
            "Move the call of load from app.py to config.py",
            "Move load to the top of app.py",
        )
    ],
)
def test_requested_moves_are_read(task: str, moves: list[tuple[str, str, str, bool]]) -> None:
    request = read_request(task)
    assert [tuple(move) for move in request.moves] == moves
    assert request.deletions({name for name, *_ in moves}, moves[0][1] if moves else "app.py") == {
        name for name, old, *_ in moves if old
    }
    assert request.deletions({name for name, *_ in moves}, moves[0][2] if moves else "config.py") == set()


@rows(
    "move a, ",
    "move the new x from a.py to ",
    "remove ",
    "the ",
    "remove load, ",
    "load,",
    "rename x in ",
    "rename a to b and ",
    "`",
    ". ",
)
def test_long_texts_are_read_in_linear_time(piece: str) -> None:
    request = read_request(piece * (20_000 // len(piece)))
    assert request.deletions({"y"}, "x.py") == set()
    assert len(request.renames) <= 1


NOTHING = [
    *("Don't rename load to read_config", "Remove load from the list", "Rename the parameter a to b in f"),
    *("rename x to y inside the function g", "Rename Order.total to amount", "Remove the unused import os"),
    *("Rename load to read_config, and keep load as an alias", "How to rename load to read_config"),
    "remove the function call load",
]


@rows(*NOTHING)
def test_ambiguous_request_has_no_expectations(text: str) -> None:
    assert read_request(text).expectations == ()


HELD = {"renames", "moves", "expectations", "_lists"}


@rows(
    ("Fix the bug in median", {"repairs"}),
    ("merge does not handle touching intervals", {"repairs", "changes"}),
    ("Rename load to read_config", {"keeps", "names"}),
    ("Set the timeout to 10", {"changes"}),
    ("Write a docstring for f", {"keeps", "creates", "documents"}),
    ("I need slug.py with a class", {"creates", "files"}),
    ("I need slug.py to be faster", {"files"}),
    ("Create slug.py with a new class", {"changes", "creates", "files"}),
    ("Fix the typos in all comments", {"repairs", "whole"}),
    ("`fix` and 'bug' and \"wrong\" are names here", {"names"}),
    ("", set()),
)
def test_kinds_of_work_in_a_request_are_recognized(text: str, what: set[str]) -> None:
    request = read_request(text)
    assert {name for name, value in vars(request).items() if value and name not in HELD} == what


def test_named_files_of_a_request_are_recognized() -> None:
    request = read_request("Rename load in `src/app.py` and main.py, not in notes.txt")
    assert request.files == {"src/app.py", "main.py"}
    assert request.speaks_of_others("src/app.py")
    assert not read_request("Fix app.py").speaks_of_others("src/app.py")
    assert not Request().speaks_of_others("app.py")
