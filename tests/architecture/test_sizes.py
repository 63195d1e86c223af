"""Rules of form: sizes of files, functions and packages, no import cycles, meaningful names."""

import ast
import re
from collections import Counter, defaultdict
from graphlib import CycleError, TopologicalSorter
from pathlib import PurePosixPath

from tests.architecture.product import PACKAGES, ROOT, module_name, sources, text_of, walk

FILE_LINES = 600
NODE_LINES = 60
FUNCTION_LINES = 60
PACKAGE_FILES = 20
EMPTY_WORDS = frozenset({"util", "utils", "helper", "helpers", "common", "core", "base", "manager", "managers", "misc"})


def lines(path: str) -> int:
    return len(text_of(path).splitlines())


def package(path: str) -> str:
    return module_name(str(PurePosixPath(path).parent / "__init__.py"))


def test_no_file_is_longer_than_its_limit() -> None:
    assert {path: lines(path) for path in sources(*PACKAGES, "tests", "benchmarks") if lines(path) > FILE_LINES} == {}
    nodes = [path for path in sources("nodes") if path.endswith("/node.py")]
    assert {path: lines(path) for path in nodes if lines(path) > NODE_LINES} == {}


def test_no_function_is_longer_than_its_limit() -> None:
    long = {
        f"{path}:{node.lineno} {node.name}": length
        for path in sources(*PACKAGES)
        for node in walk(path)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        and (length := (node.end_lineno or node.lineno) - node.lineno + 1) > FUNCTION_LINES
    }
    assert long == {}


def test_no_package_has_too_many_files() -> None:
    files = Counter(package(path) for path in sources(*PACKAGES))
    assert {name: count for name, count in files.items() if count > PACKAGE_FILES} == {}


def test_file_names_contain_no_empty_words() -> None:
    words = {path: {*PurePosixPath(path).with_suffix("").as_posix().replace("/", "_").split("_")}
             for path in sources(*PACKAGES, "tests", "benchmarks")}  # fmt: skip
    assert [path for path, parts in words.items() if parts & EMPTY_WORDS] == []


def imported(path: str, modules: dict[str, str]) -> set[str]:
    """Our packages that a file imports, also inside functions, but not only for types."""
    nodes = list(walk(path))
    for_types = {
        id(child)
        for node in nodes
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for child in ast.walk(node)
    }
    names = {
        f"{node.module}.{alias.name}" if f"{node.module}.{alias.name}" in modules else str(node.module)
        for node in nodes
        if isinstance(node, ast.ImportFrom) and id(node) not in for_types
        for alias in node.names
    }
    return {modules[name] for name in names if name in modules}


def test_packages_have_no_import_cycle() -> None:
    modules = {module_name(path): package(path) for path in sources(*PACKAGES)}
    below: dict[str, set[str]] = defaultdict(set)
    for path in sources(*PACKAGES):
        below[package(path)] |= imported(path, modules) - {package(path)}
    try:
        TopologicalSorter(below).prepare()
    except CycleError as circle:
        raise AssertionError(" imports ".join(reversed(circle.args[1]))) from None


def test_every_folder_is_a_package() -> None:
    folders = {PurePosixPath(path).parent for path in sources(*PACKAGES, "tests")}
    assert sorted(str(folder) for folder in folders if not (ROOT / folder / "__init__.py").is_file()) == []


def test_every_folder_of_tests_is_documented() -> None:
    layers = {PurePosixPath(path).parts[1] for path in sources("tests") if path.count("/") > 1}
    described = re.findall(r"^\| `(\w+)/`", text_of("docs/testing.md"), re.MULTILINE)
    assert sorted(described) == sorted(layers)
