"""The test files that belong to changed files, by their names or their imports."""

import ast
import posixpath
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice

from mendgraph.nodes.execute_tools.edits.python_text import SyntaxProblem, parse
from mendgraph.nodes.execute_tools.evidence.weakened import is_test
from mendgraph.nodes.execute_tools.registry import ToolContext
from mendgraph.nodes.execute_tools.tools.proof import MOST_WALKED
from mendgraph.nodes.execute_tools.tools.saving import LoadedText, load_text
from mendgraph.nodes.language.request import module_of
from mendgraph.nodes.workspace.files.text_files import LARGEST_TEXT
from mendgraph.nodes.workspace.files.tree_walk import is_installed

MOST_PARSED = 200  # Python files whose imports are read, tests first


def find_tests(context: ToolContext, paths: Sequence[str]) -> dict[str, list[str]]:
    """Return the test files for each of these files: by name, or else by direct or indirect import."""
    tests: dict[str, list[str]] = {}
    without_test: list[str] = []

    for path in paths:
        tests[path] = list(filter(context.workspace.exists, possible_tests(path)))
        if path.endswith(".py") and not tests[path]:
            without_test.append(path)

    if not without_test:
        return tests

    tests_first = sorted(python_files(context), key=is_test, reverse=True)
    texts = dict(read_texts(context, tests_first[:MOST_PARSED]))

    for path in without_test:
        importing = _importing(texts, {module_of(path)})
        tests[path] = list(filter(is_test, importing))
        if not tests[path]:
            indirect = _importing(texts, {module_of(file) for file in importing})
            tests[path] = list(filter(is_test, indirect))

    return tests


def _importing(texts: Mapping[str, str], modules: Collection[str]) -> list[str]:
    """Return those of the files that import one of these modules, by its last name."""
    importing: list[str] = []

    for path, text in texts.items():
        if not any(module in text for module in modules):
            continue

        tree = parse(text)
        if not isinstance(tree, SyntaxProblem) and not set(modules).isdisjoint(_imported(tree)):
            importing.append(path)

    return importing


def python_files(context: ToolContext) -> Iterator[str]:
    """Yield the project's own Python files among the first names of the workspace."""
    walked = (entry.path for entry in context.workspace.walk() if not is_installed(entry.path))
    for path in islice(walked, MOST_WALKED):
        if path.endswith(".py"):
            yield path


def _imported(tree: ast.Module) -> Iterator[str]:
    """Yield the parts of all imported names."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield from (getattr(node, "module", "") or "").split(".")
            for alias in node.names:
                yield from alias.name.split(".")


def possible_tests(path: str) -> Iterable[str]:
    """Return the usual places of a Python file's test, most likely first."""
    folder, file = posixpath.split(path)
    if not file.endswith(".py") or file == "__init__.py":
        return ()
    if is_test(path):
        return (path,)

    inner = folder.removeprefix("src").lstrip("/")
    places = (folder, posixpath.join(folder, "tests"), "tests", posixpath.join("tests", inner), "test", "")
    return dict.fromkeys(posixpath.join(place, f"test_{file}") for place in places)


def read_texts(context: ToolContext, paths: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield the text files among these, by their paths without links."""
    for path in paths:
        loaded = load_text(context, path)
        if isinstance(loaded, LoadedText) and len(loaded.file.text) <= LARGEST_TEXT:
            yield loaded.path, loaded.file.text


def without_django(context: ToolContext, tests: Iterable[str]) -> Iterator[str]:
    """Yield the test files that do not need Django, which `manage.py` sets up."""
    for path, text in read_texts(context, tests):
        if "django" not in text:
            yield path
