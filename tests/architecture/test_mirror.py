"""`nodes/guard/policy.py` is tested in `tests/nodes/guard/test_policy.py`, and nowhere is a test without its source."""

from pathlib import PurePosixPath

from tests.architecture.house import PACKAGES, ROOT, sources

WITHOUT_TEST_FILE = {
    "words.py": "see test_call_words.py, test_plain_text.py, test_usage_words.py and test_run_words.py of the terminal",
    "__init__.py": "a docstring at most; the lazy names of graph/__init__.py have tests/graph/test_init.py",
}
"""File names that need no test file of their own, and why. (`py.typed` is no source file.)"""


ATTACKS = "attacks"
"""A folder of tests that are aimed at a whole room, not at one of its files."""


def mirrored(path: str) -> str:
    """The test file of a source file."""
    place = PurePosixPath("tests", path)
    name = "test_init.py" if place.name == "__init__.py" else f"test_{place.name}"
    return str(place.with_name(name))


def test_every_source_file_has_its_test_file() -> None:
    wanted = {mirrored(path) for path in sources(*PACKAGES) if PurePosixPath(path).name not in WITHOUT_TEST_FILE}
    assert sorted(wanted - set(sources("tests"))) == []


def test_every_test_file_has_its_source_file() -> None:
    tests = {
        path
        for path in sources("tests/graph", "tests/nodes")
        if PurePosixPath(path).name.startswith("test_") and PurePosixPath(path).parent.name != ATTACKS
    }
    assert sorted(tests - {mirrored(path) for path in sources(*PACKAGES)}) == []


def test_every_folder_is_a_package() -> None:
    folders = {PurePosixPath(path).parent for path in sources(*PACKAGES, "tests")}
    assert sorted(str(folder) for folder in folders if not (ROOT / folder / "__init__.py").is_file()) == []
