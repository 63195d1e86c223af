"""A package can be seen whole, packages form no circle, and tests follow packages."""

import ast
from collections import Counter, defaultdict
from graphlib import CycleError, TopologicalSorter
from pathlib import PurePosixPath

from tests.architecture.product import PACKAGES, ROOT, module_name, sources, walk

FILES = 20


def package(path: str) -> str:
    return module_name(str(PurePosixPath(path).parent / "__init__.py"))


def imported(path: str, modules: dict[str, str]) -> set[str]:
    """The packages of ours that a file imports, those inside of functions included, those for types alone not."""
    nodes = list(walk(path))
    for_types = {
        id(each)
        for node in nodes
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for each in ast.walk(node)
    }
    names = {
        f"{node.module}.{alias.name}" if f"{node.module}.{alias.name}" in modules else str(node.module)
        for node in nodes
        if isinstance(node, ast.ImportFrom) and id(node) not in for_types
        for alias in node.names
    }
    return {modules[name] for name in names if name in modules}


def test_packages_form_no_circle() -> None:
    modules = {module_name(path): package(path) for path in sources(*PACKAGES)}
    below: dict[str, set[str]] = defaultdict(set)
    for path in sources(*PACKAGES):
        below[package(path)] |= imported(path, modules) - {package(path)}
    try:
        TopologicalSorter(below).prepare()
    except CycleError as circle:
        raise AssertionError(" imports ".join(reversed(circle.args[1]))) from None


def test_package_has_a_few_files() -> None:
    files = Counter(package(path) for path in sources(*PACKAGES))
    assert {name: count for name, count in files.items() if count > FILES} == {}


def test_tests_follow_packages() -> None:
    """A folder of tests below `graph` or `nodes` is that of a package, or its `attacks`."""
    folders = {PurePosixPath(path).parent for path in sources("tests/graph", "tests/nodes")}
    packages = {folder.relative_to("tests") for folder in folders if folder.name != "attacks"}
    assert sorted(str(folder) for folder in packages if not (ROOT / folder / "__init__.py").is_file()) == []


def test_every_folder_is_a_package() -> None:
    folders = {PurePosixPath(path).parent for path in sources(*PACKAGES, "tests")}
    assert sorted(str(folder) for folder in folders if not (ROOT / folder / "__init__.py").is_file()) == []
