"""The package `nodes/guard/` is tested in `tests/nodes/guard/`, and nowhere are tests without their package."""

from pathlib import PurePosixPath

from tests.architecture.house import PACKAGES, ROOT, sources

ATTACKS = "attacks"
"""A folder of tests that are aimed at a whole package."""


def packages(*folders: str) -> set[PurePosixPath]:
    """The folders that hold more than an `__init__.py`."""
    return {PurePosixPath(path).parent for path in sources(*folders) if not path.endswith("__init__.py")}


def test_every_package_has_its_tests() -> None:
    tested = {PurePosixPath(path).parent for path in sources("tests") if PurePosixPath(path).name.startswith("test_")}
    assert sorted(str(each) for each in packages(*PACKAGES) if PurePosixPath("tests", each) not in tested) == []


def test_all_tests_have_their_package() -> None:
    known = {PurePosixPath("tests", each) for each in packages(*PACKAGES)}
    folders = {each.parent if each.name == ATTACKS else each for each in packages("tests/graph", "tests/nodes")}
    assert sorted(map(str, folders - known)) == []


def test_every_folder_is_a_package() -> None:
    folders = {PurePosixPath(path).parent for path in sources(*PACKAGES, "tests")}
    assert sorted(str(folder) for folder in folders if not (ROOT / folder / "__init__.py").is_file()) == []
