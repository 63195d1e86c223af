import pytest
from hypothesis import given, strategies as st

from nodes.execute_tools.tools.asked_changes import asked_deletions, asked_renames

NAMES = frozenset(
    {"word_count", "load", "save", "Foo", "Cart", "Cart.total", "Cart.size", "ROLES", "admin", "items", "json", "main"}
)
TOTALS = frozenset({"total", "Cart", "Cart.total", "A.size", "B.size"})


@pytest.mark.parametrize(
    ("task", "path", "names"),
    [
        ("Remove the unused function word_count from report.py", "src/report.py", {"word_count"}),
        ("Remove the unused function word_count from report.py", "other.py", set()),
        ("In report.py, remove the dead function `word_count`.", "report.py", {"word_count"}),
        ("In report.py, remove the dead function `word_count`.", "other.py", set()),
        ("delete `Foo`", "a.py", {"Foo"}),
        ("Please delete load() and save().", "", {"load", "save"}),
        ("Get rid of word_count, load and save.", "", {"word_count", "load", "save"}),
        ("Delete the dead function word_count in report.py and nothing else.", "report.py", {"word_count"}),
        ("Delete the word_count function (it is unused).", "", {"word_count"}),
        ("Delete load - it is unused", "", {"load"}),
        ("Drop ROLES: nothing uses it.", "", {"ROLES"}),
        ("Remove io.load", "io.py", {"load"}),
        ("Remove the method total from Cart.", "", {"Cart.total"}),
        ("Remove Cart.total", "", {"Cart.total"}),
        ("Clean up: removing load is enough.", "", {"load"}),
        ("Remove the unused import json from a.py", "a.py", {"json"}),
        ("The function word_count is never used. Delete it.", "", {"word_count"}),
        ("word_count in report.py is dead code, so remove it.", "report.py", {"word_count"}),
        ("There is a dead function in report.py, word_count. Remove it and nothing else.", "report.py", {"word_count"}),
        ("The class Foo is unused: remove it", "", {"Foo"}),
        ("word_count should be removed.", "", {"word_count"}),
        ("The method Cart.total can now be deleted", "", {"Cart.total"}),
        ("remove load and save the result", "", {"load"}),
        ("Fix main.\nRemove load.", "", {"load"}),
        ("", "", set()),
        ("Fix the bug in word_count.", "", set()),
        ("Drop support for load", "", set()),
        ("Remove word_count's docstring", "", set()),
        ("Remove the docstring of word_count", "", set()),
        ("The docstring of word_count should be removed", "", set()),
        ("The docstring of word_count is obsolete. Remove it.", "", set()),
        ("The function load is slow. Remove it from the hot path", "", set()),
        ("Don't remove load.", "", set()),
        ("Do not delete load", "", set()),
        ("Fix main without removing load", "", set()),
        ("Load should not be removed; load must never be deleted", "", set()),
        ("Should I remove load?", "", set()),
        ("If load is slow, remove it", "", set()),
        ("remove admin from ROLES", "", set()),
        ("Remove duplicates from items", "", set()),
        ("Remove the last element of items", "", set()),
        ("Remove load calls from main", "", set()),
        ("Remove the print statement in main", "", set()),
        ("Remove trailing whitespace in items.", "", set()),
        ("Remove the argument admin of load", "", set()),
        ("Remove something_else", "", set()),
    ],
)
def test_deletions(task: str, path: str, names: set[str]) -> None:
    assert asked_deletions(task, NAMES, path) == names


@pytest.mark.parametrize(
    ("task", "names"),
    [
        ("Delete total", {"total"}),
        ("Delete the function total", {"total"}),
        ("Delete the method total", {"Cart.total"}),
        ("Delete total from Cart", {"Cart.total"}),
        ("Delete the method total of Cart.", {"Cart.total"}),
        ("Delete size", set()),
        ("Delete the method size", set()),
        ("Delete size from B and total", {"B.size"}),
    ],
)
def test_a_method_and_a_function_of_one_name_are_told_apart(task: str, names: set[str]) -> None:
    assert asked_deletions(task, TOTALS) == names


@pytest.mark.parametrize(
    ("task", "renames"),
    [
        ("Rename the function load to load_config in settings.py and update app.py.", {"load": "load_config"}),
        ("rename `load` -> `load_config`", {"load": "load_config"}),
        ("Rename load() in settings.py to load_config everywhere", {"load": "load_config"}),
        ("Please rename function `calc` in `calc.py` to `compute`, and update callers", {"calc": "compute"}),
        ("Rename load to load_config and save to save_config.", {"load": "load_config", "save": "save_config"}),
        ("load should be called load_config", {"load": "load_config"}),
        ("The constant MAX must be renamed to LIMIT", {"MAX": "LIMIT"}),
        ("The method total of Cart should be named sum_up.", {"total": "sum_up"}),
        ("Rename Cart.total to Cart.sum_up.", {"total": "sum_up"}),
        ("change the name of the class Foo in shapes.py to Bar", {"Foo": "Bar"}),
        ("Give the function load the name fetch.", {"load": "fetch"}),
        ("Rename x to y; rename z to w", {"x": "y", "z": "w"}),
        ("", {}),
        ("Rename a.py to b.py", {}),
        ("Rename the file load to x", {}),
        ("Do not rename load to y", {}),
        ("Rename it to x", {}),
        ("Rename load to class", {}),
        ("Rename load to load", {}),
        ("Change load to return 3", {}),
        ("load should be fast", {}),
        ("Move load to io.py", {}),
    ],
)
def test_renames(task: str, renames: dict[str, str]) -> None:
    assert asked_renames(task) == renames


@pytest.mark.parametrize(
    "piece", ["remove ", "the ", "remove load, ", "load,", "rename x in ", "rename a to b and ", "`", ". "]
)
def test_long_texts_are_read_in_linear_time(piece: str) -> None:
    text = piece * (100_000 // len(piece))
    assert asked_deletions(text, {"y"}, "x.py") == set()
    assert len(asked_renames(text)) <= 1


@given(st.text(max_size=60), st.sets(st.sampled_from(["load", "Cart.total", "x"])))
def test_only_names_that_are_there_are_deleted(task: str, names: set[str]) -> None:
    assert asked_deletions(f"Remove {task}", names) <= names
    assert asked_deletions(task.replace("remove", ""), set()) == set()
