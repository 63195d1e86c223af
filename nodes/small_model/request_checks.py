"""Parts of a request that a small model has not done, by its words; the model is told and tries again.

Measured on the embedded model (`benchmarks/details.md`): checks of removed or new names, and of files that an order
must change, are worth 2 of 33 orders each, and the first one 1 of 24 tasks.
"""

import ast
import posixpath
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence, Set as AbstractSet
from typing import Final, NamedTuple, Protocol

from mendgraph.nodes.language.display import listed
from mendgraph.nodes.language.documents import defined_names, parse_quietly
from mendgraph.nodes.language.names import IS_TEST, TEXT_SUFFIXES, named_paths, split_output
from mendgraph.nodes.language.request import Expectation, Move, is_file, module_of, read_request
from mendgraph.nodes.small_model.wording import ORDER, SENTENCES, orders_a_change

MOST_LINES: Final = 5  # line numbers in a sentence
_TO_PASS: Final = re.compile(
    r"\b(?:tests?|checks?|suite|build)\b[^.\n]{0,60}\b(?:pass(?:es|ing)?|succeeds?|green|fail(?:s|ed|ing)?|red|broken)\b"
    r"|\b(?:fix|repair|mend|failing|broken)\s+(?:(?:the|all|its|our|failing|broken|unit)\s+){0,3}(?:tests?|checks?|suite"
    r"|build)\b",
    re.IGNORECASE,
)
_COMMON: Final = frozenset({"make", "go", "sh", "test", "check", ""})  # programs with the names of usual words


class TestsRun(Protocol):
    """The results of tests: the messages of those that `failed`, and those `near` to the changed code."""

    @property
    def name(self) -> str:
        """The program that ran them, or the name of a test."""

    @property
    def failed(self) -> Mapping[str, str]:
        """The message of each failure."""

    @property
    def near(self) -> Sequence[str]:
        """The tests that ran the changed code."""


class RequestChecks(NamedTuple):
    """The conditions in the words of `request` that must hold when the work is done."""

    request: str

    def moved_names(self) -> frozenset[str]:
        """The definitions that move from one file to another."""
        return frozenset(move.name for move in read_request(self.request).moves)

    def unfinished_requests(self, texts: Mapping[str, str]) -> list[str]:
        """Return what is missing, in sentences like `load is still in app.py, line 3, 7.`.

        `texts` are the files of the request, by path; only names in Python files count.
        """
        trees = _trees(texts)
        if not trees:
            return []

        request = read_request(self.request)
        sentences: list[str] = []

        for expected in request.expectations:
            sentences += _unmet_expectation(expected, trees)

        code = "\n".join(texts.values()).replace("-", "_")  # an option's name may be that of a parameter
        for flag in sorted(request.flags):
            if flag.replace("-", "_") not in code:
                sentences.append(f"--{flag} is not in {' or '.join(texts)}.")

        for move in request.moves:
            sentences += _not_moved(move, trees)

        return sentences

    def tests_of_request(
        self, already: Collection[str], now: TestsRun, before: TestsRun, defined: Collection[str]
    ) -> set[str]:
        """Return those of the tests that failed `already` which the request is about.

        A request for a repair or a new feature covers more: if everything failed `before`, the tests that ran the
        changed code, and those named like what the changed files have `defined`.
        """
        if _TO_PASS.search(self.request):
            return {*already}

        request = read_request(self.request)
        words = frozenset(re.findall(r"\w+", self.request))
        subjects = words.intersection(defined)
        everything_failed = before.failed.keys() <= now.failed.keys()
        covers_more = (request.repairs or request.creates) and everything_failed

        tests = set()
        for test in already:
            is_named = test in self.request or words & _names_of(test, now.name)
            is_about = request.repairs and (not subjects or any(subject in test for subject in subjects))
            is_covered = covers_more and test != now.name and (test in now.near or is_about)
            if is_named or is_covered:
                tests.add(test)

        return tests

    def left_undone(self, changed: Collection[str], exists: Callable[[str], bool]) -> str:
        """Return what the request must change and the `changed` files do not; "" if nothing, or if unclear."""
        request, _ = split_output(self.request)
        unchanged: list[str] = []
        for path, is_old in files_to_change(request).items():
            is_changed = any(is_file(other, path) for other in changed)
            if exists(path) is is_old and not is_changed:
                unchanged.append(path)

        if unchanged:
            verb = "were" if len(unchanged) > 1 else "was"
            return f"The request names {listed(unchanged)}, which {verb} not changed."

        if not changed and orders_a_change(request):
            return "All files are as they were before."

        return ""


def _trees(texts: Mapping[str, str]) -> dict[str, ast.Module]:
    """Return the syntax trees of the Python files that can be parsed."""
    trees: dict[str, ast.Module] = {}
    for path, text in texts.items():
        if not path.endswith(".py"):
            continue

        try:
            trees[path] = parse_quietly(text)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            continue

    return trees


def _unmet_expectation(expected: Expectation, trees: Mapping[str, ast.Module]) -> Iterator[str]:
    modules = frozenset(module_of(path) for path in trees)
    for path, tree in trees.items():
        lines = sorted(set(_use_lines(tree, expected.gone, modules)))
        if lines:
            yield f"{expected.gone} is still in {path}, line {_numbers(lines)}."

    if expected.defined and not any(expected.defined in defined_names(tree) for tree in trees.values()):
        yield f"{expected.defined} is not defined in {' or '.join(trees)}."


def _numbers(lines: Sequence[int]) -> str:
    return ", ".join(map(str, lines[:MOST_LINES]))


def _not_moved(move: Move, trees: Mapping[str, ast.Module]) -> Iterator[str]:
    """Return where a moved definition still is, or is imported from."""
    name = move.name
    new = module_of(move.new)
    holders = [path for path, tree in trees.items() if name in _top_names(tree)]
    remaining = [path for path in holders if move.leaves(path)]

    if move.old or len(remaining) == 1:
        for path in remaining:
            yield f"{name} is still defined in {path}."

    is_imported = any(_imports_of(tree, name, {new}) for tree in trees.values())
    is_moved = any(is_file(path, move.new) for path in holders)
    if (move.certain or is_imported) and not is_moved:
        yield f"{name} is not defined in {move.new}."

    sources = {move.old}
    if not move.old:
        sources = trees.keys() - {*holders}
    old_modules = {module_of(path) for path in sources if "__init__" not in path}

    for path, tree in trees.items():
        lines = sorted(set(_imports_of(tree, name, old_modules - {new})))
        if lines:
            yield f"{name} is to be imported from {new} in {path}, line {_numbers(lines)}."


def _top_names(tree: ast.Module) -> set[str]:
    """Return the names that a module defines at its top level."""
    names: set[str] = set()
    for node in tree.body:
        for target in getattr(node, "targets", [getattr(node, "target", node)]):
            names.add(getattr(target, "id", "") or getattr(target, "name", ""))

    return names


def _imports_of(tree: ast.Module, name: str, modules: AbstractSet[str]) -> list[int]:
    """Return the lines where a name is imported from one of these modules, or used as an attribute of one."""
    nodes = [*ast.walk(tree)]
    imported: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Import | ast.ImportFrom):
            imported.update(alias.asname or alias.name for alias in node.names)

    lines: list[int] = []
    for node in nodes:
        if isinstance(node, ast.ImportFrom):
            is_source = (node.module or "").rpartition(".")[2] in modules
            if is_source and any(alias.name == name for alias in node.names):
                lines.append(node.lineno)
        elif isinstance(node, ast.Attribute):
            is_source = getattr(node.value, "id", "") in imported & modules
            if is_source and node.attr == name:
                lines.append(node.lineno)

    return lines


def _use_lines(tree: ast.Module, name: str, modules: frozenset[str]) -> Iterator[int]:
    """Yield the lines where the name is defined, imported or used, except as a local variable."""
    pending: list[ast.AST] = [tree]

    while pending:
        node = pending.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) and name in _local_variables(node):
            continue

        pending.extend(ast.iter_child_nodes(node))
        if isinstance(node, ast.alias):
            continue

        if isinstance(node, ast.Attribute) and node.attr == name:
            is_used = getattr(node.value, "id", "") in modules | {"self", "cls"}
        elif isinstance(node, ast.ImportFrom):
            is_used = any(alias.name == name for alias in node.names)
        else:
            is_used = name in (getattr(node, "id", ""), getattr(node, "name", ""))

        if is_used:
            yield getattr(node, "lineno", 0)


def _local_variables(function: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) -> set[str]:
    outer: set[str] = set()
    stored: set[str] = set()
    for node in ast.walk(function):
        if isinstance(node, ast.Global | ast.Nonlocal):
            outer.update(node.names)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            stored.add(node.id)

    arguments = {node.arg for node in ast.walk(function.args) if isinstance(node, ast.arg)}
    return arguments | (stored - outer)


def _names_of(test: str, command: str) -> frozenset[str]:
    """Return the words of a test's name: its function and its file, or the program of a command."""
    if test == command:
        return frozenset({posixpath.basename(test.partition(" ")[0])}) - _COMMON

    name = test.partition(" (")[0]
    path, _, function = name.rpartition("::")
    if name.endswith(".py"):
        path = name
        function = ""

    if " " in path:
        return frozenset()

    parts = re.split(r"[.\[]", function)
    return frozenset({posixpath.basename(path).partition(".")[0], parts[0], parts[-1]})


# --- The files that a request must change, and those that it only mentions


_FILE = rf"(?<![\w./-])(?:[\w.-]+/)*[\w-]+\.(?:{'|'.join(sorted(TEXT_SUFFIXES, key=len, reverse=True))})\b(?![\w/(])"
_FILE_NAME = re.compile(_FILE)
_FILES = re.compile(rf"{_FILE}(?:(?:,? and |, | & ){_FILE})*")
_QUOTED_FILE = re.compile(rf"`({_FILE})`")
_TO_CHANGE = re.compile(
    r"(?:change|edit|modify|refactor|replace|rewrite|set|update)(?:| .* in)|rename .*(?: in|\()"
    r"|(?:add|append|insert) .* (?:in|to)|(?:delete|drop|remove)(?:| .* (?:in|from))",
    re.IGNORECASE,
)
_TO_MAKE = re.compile(
    r"(?:create|write)(?:(?: (?:me|an?|the|new|empty|small|simple|file|module|script|called|named))*| .* in)",
    re.IGNORECASE,
)
"""Words before files that the request must change or create."""
_FROM = re.compile(rf" (?:from|out of) ({_FILE})")
_INTO = re.compile(rf" (?:in|to|into) ({_FILE})")
_TESTED = re.compile(r"(?>.*?\b(?:add|extend|write)\b).*\b(?:test|case)s?\b|.*\bcover\b", re.IGNORECASE)
"""Words that say that a file gets a test."""
_CONTEXT = re.compile(
    r"\b(?:after|before|but|calls?|circular|differ\w*|duplicate\w*|for|imports?|inconsisten\w*|like|links?|match\w*|of|on"
    r"|ones?|references?|same|see|so|sure|than|that|those|to (?:an?|be|it|its|the|what)|us(?:e|es|ing)|via|where|which"
    r"|while|who|with|\w+ing)\b",
    re.IGNORECASE,
)
"""Words before a file that may only be context."""
_UNSURE = re.compile(
    r"\b(?:either|except|if|instead|keep|leave|needed|never|no|not|only|or|stays?|unless|without)\b|n't\b|\?",
    re.IGNORECASE,
)
_ONWARDS = re.compile(r" (?:as|from|into|like|so|to)\b(?! [\d\"'])", re.IGNORECASE)


def files_to_change(request: str) -> dict[str, bool]:
    """Return the files that an order must change (True) or create (False); empty if unclear.

    A single file or a test is not certain, since it may only have to pass: `in a.py and b.py`. The source of a move and
    a file that gets a test are certain.
    """
    if not orders_a_change(request):
        return {}

    sentences = SENTENCES.split(_QUOTED_FILE.sub(r"\1", request))
    unsure: set[str] = set()
    for sentence in sentences:
        if _UNSURE.search(sentence):
            unsure.update(named_paths(sentence))

    expected: dict[str, bool] = {}
    for sentence in sentences:
        expected |= _files_of_order(sentence, unsure)

    return expected


def _files_of_order(sentence: str, unsure: AbstractSet[str]) -> dict[str, bool]:
    """Return the files that one sentence orders to change (True) or to create (False), without the `unsure` ones."""
    order = ORDER.match(sentence)
    lists = [*_FILES.finditer(sentence)]
    if order is None or not lists:
        return {}

    verb = order[0].split()[-1]
    tests: list[str] = []
    if _TESTED.match(sentence):
        tests = [path for path in _INTO.findall(sentence) if IS_TEST.search(path)]

    targets: list[str] = []
    if verb.lower() == "move":
        targets = _FROM.findall(sentence)[:1]
    elif len(tests) == 1:
        targets = tests

    if verb.lower() != "rename":
        lists = lists[:1]

    head = verb + sentence[order.end() : lists[-1].start()].removesuffix("both ").rstrip()
    files: list[str] = []
    if not _CONTEXT.search(head) and not _ONWARDS.match(sentence, lists[-1].end()):
        for match in lists:
            files += [path for path in _FILE_NAME.findall(match[0]) if path not in unsure]

    creates = _TO_MAKE.fullmatch(head) is not None
    is_certain = len(files) > 1 and not any(IS_TEST.search(path) for path in files) and _TO_CHANGE.fullmatch(head)
    expected = {path: True for path in targets if path not in unsure}
    if creates or is_certain:
        expected |= dict.fromkeys(files, not creates)

    return expected
