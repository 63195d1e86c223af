import pytest

from nodes.execute_tools.tools.request_words import Request, read_request

NOTHING = Request(
    repairs=False, complains=False, keeps=False, changes=False, creates=False, documents=False, files=frozenset()
)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("Fix the bug in median", {"repairs"}),
        ("median is wrong for even lists", {"repairs"}),
        ("The tests fail because totals are rounded wrong", {"repairs"}),
        ("parse crashes on empty input", {"repairs"}),
        ("flatten never ends for cycles", {"repairs"}),
        ("merge does not handle touching intervals", {"repairs", "changes"}),
        ("f(1) returns 3 instead of 2", {"complains"}),
        ("median([1, 2]) gives 1, expected 1.5", {"complains"}),
        ("Rename load to read_config", {"keeps"}),
        ("Put type hints on all functions", {"keeps"}),
        ("Delete the dead function f", {"keeps"}),
        ("Refactor parse", {"keeps"}),
        ("Change the date format", {"changes"}),
        ("Set the timeout to 10", {"changes"}),
        ("Write a docstring for f", {"keeps", "creates", "documents"}),
        ("Add a function slugify", {"changes", "creates"}),
        ("I need slug.py with a class", {"creates", "files"}),
        ("I want a small function", {"creates"}),
        ("I need slug.py to be faster", {"files"}),
        ("Create slug.py with a new class", {"changes", "creates", "files"}),
        ("The example is out of date", {"documents"}),
        ("slugify makes a slug, for example this one", set()),
        ("`fix` and 'bug' and \"wrong\" are names here", set()),
        ("", set()),
    ],
)
def test_what_a_request_asks_for(text: str, what: set[str]) -> None:
    found = read_request(text)
    assert {name for name, value in found._asdict().items() if value} == what


def test_the_files_that_it_names() -> None:
    request = read_request("Rename load in `src/app.py` and main.py, not in notes.txt")
    assert request.files == {"src/app.py", "main.py"}
    assert request.speaks_of_others("src/app.py")
    assert not read_request("Fix app.py").speaks_of_others("src/app.py")
    assert not NOTHING.speaks_of_others("app.py")
