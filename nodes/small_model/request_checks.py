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
from mendgraph.nodes.language.request import Move, is_file, module_of, read_request
from mendgraph.nodes.small_model.wording import ORDER, SENTENCES, orders_a_change

MOST_LINES: Final = 5  # lines that a sentence names
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
        trees = dict(_trees(texts))
        if not trees:
            return []

        request_read = read_request(self.request)
        modules = frozenset(module_of(path) for path in trees)
        sentences: list[str] = []

        for expected in request_read.expectations:
            for path, tree in trees.items():
                if lines := sorted(set(_use_lines(tree, expected.gone, modules))):
                    sentences.append(f"{expected.gone} is still in {path}, line {_numbers(lines)}.")

            if expected.defined and not any(expected.defined in defined_names(tree) for tree in trees.values()):
                sentences.append(f"{expected.defined} is not defined in {' or '.join(trees)}.")

        code = "\n".join(texts.values()).replace("-", "_")  # an option's name may be that of a parameter
        flags = (flag for flag in sorted(request_read.flags) if flag.replace("-", "_") not in code)
        sentences += (f"--{flag} is not in {' or '.join(texts)}." for flag in flags)

        for move in request_read.moves:
            sentences += _not_moved(move, trees)

        return sentences

    def tests_of_request(
        self, already: Collection[str], now: TestsRun, before: TestsRun, defined: Collection[str]
    ) -> set[str]:
        """Return those of the tests that failed `already` which the request is about.

        A request for a repair or a new feature covers more: if everything failed `before`, the tests that ran the
        changed code, and those named like what the changed files have `defined`.
        """
        request = self.request
        if _TO_PASS.search(request):
            return {*already}

        request_read = read_request(request)
        words = frozenset(re.findall(r"\w+", request))
        subjects = words.intersection(defined)
        insists = (request_read.repairs or request_read.creates) and before.failed.keys() <= now.failed.keys()

        def counts(test: str) -> bool:
            if test in request or words & _names_of(test, now.name):
                return True

            about = request_read.repairs and (not subjects or any(subject in test for subject in subjects))
            return insists and test != now.name and (test in now.near or about)

        return {*filter(counts, already)}

    def left_undone(self, changed: Collection[str], exists: Callable[[str], bool]) -> str:
        """Return what the request must change and the `changed` files do not; "" if nothing, or if unclear."""
        request, _ = split_output(self.request)
        to_change = [path for path, old in files_to_change(request).items() if exists(path) is old]
        if unchanged := [path for path in to_change if not any(is_file(other, path) for other in changed)]:
            return f"The request names {listed(unchanged)}, which {'were' if unchanged[1:] else 'was'} not changed."
        if not changed and orders_a_change(request):
            return "All files are as they were before."

        return ""


def _trees(texts: Mapping[str, str]) -> Iterator[tuple[str, ast.Module]]:
    for path, text in texts.items():
        if path.endswith(".py"):
            try:
                yield path, parse_quietly(text)
            except (SyntaxError, ValueError, RecursionError, MemoryError):
                continue


def _numbers(lines: Sequence[int]) -> str:
    return ", ".join(map(str, lines[:MOST_LINES]))


def _not_moved(move: Move, trees: Mapping[str, ast.Module]) -> Iterator[str]:
    """Return where a moved definition still is, or is imported from."""
    name = move.name
    new = module_of(move.new)
    holders = [path for path, tree in trees.items() if name in _top_names(tree)]
    paths_left = [path for path in holders if move.leaves(path)]

    if move.old or len(paths_left) == 1:
        yield from (f"{name} is still defined in {path}." for path in paths_left)

    is_imported = any(import_found for tree in trees.values() for import_found in _imports_of(tree, name, {new}))
    if (move.certain or is_imported) and not any(is_file(path, move.new) for path in holders):
        yield f"{name} is not defined in {move.new}."

    olds = {module_of(path) for path in ([move.old] if move.old else {*trees} - {*holders}) if "__init__" not in path}
    for path, tree in trees.items():
        if lines := sorted(set(_imports_of(tree, name, olds - {new}))):
            yield f"{name} is to be imported from {new} in {path}, line {_numbers(lines)}."


def _top_names(tree: ast.Module) -> set[str]:
    targets = (target for node in tree.body for target in getattr(node, "targets", [getattr(node, "target", node)]))
    return {getattr(target, "id", "") or getattr(target, "name", "") for target in targets}


def _imports_of(tree: ast.Module, name: str, modules: AbstractSet[str]) -> Iterator[int]:
    """Return where a name is imported from one of these modules, or used as an attribute of one."""
    nodes = [*ast.walk(tree)]
    imports = (node for node in nodes if isinstance(node, ast.Import | ast.ImportFrom))
    bound = {alias.asname or alias.name for node in imports for alias in node.names}

    for node in nodes:
        if isinstance(node, ast.ImportFrom) and (node.module or "").rpartition(".")[2] in modules:
            yield from (node.lineno for alias in node.names if alias.name == name)
        elif isinstance(node, ast.Attribute) and node.attr == name and getattr(node.value, "id", "") in bound & modules:
            yield node.lineno


def _use_lines(tree: ast.Module, name: str, modules: frozenset[str]) -> Iterator[int]:
    """Return where the name is defined, imported or used, except as a local variable."""
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) and name in _own_variables(node):
            continue

        waiting.extend(ast.iter_child_nodes(node))
        is_used = name in (getattr(node, "id", ""), getattr(node, "name", ""))
        is_used |= isinstance(node, ast.ImportFrom) and any(alias.name == name for alias in node.names)

        if isinstance(node, ast.Attribute) and node.attr == name:
            is_used = getattr(node.value, "id", "") in modules | {"self", "cls"}

        if is_used and not isinstance(node, ast.alias):
            yield getattr(node, "lineno", 0)


def _own_variables(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) -> set[str]:
    inner = [*ast.walk(node)]
    outer = {
        name for inner_node in inner if isinstance(inner_node, ast.Global | ast.Nonlocal) for name in inner_node.names
    }
    stored = {
        inner_node.id
        for inner_node in inner
        if isinstance(inner_node, ast.Name) and isinstance(inner_node.ctx, ast.Store)
    }

    return {argument.arg for argument in ast.walk(node.args) if isinstance(argument, ast.arg)} | (stored - outer)


def _names_of(test: str, command: str) -> frozenset[str]:
    """Return the words of a test's name: its function and its file, or the program of a command."""
    if test == command:
        return frozenset({posixpath.basename(test.partition(" ")[0])}) - _COMMON

    name = test.partition(" (")[0]
    path, _, function = (name, "", "") if name.endswith(".py") else name.rpartition("::")
    parts = re.split(r"[.\[]", function)
    names = {posixpath.basename(path).partition(".")[0], parts[0], parts[-1]}

    return frozenset(names if " " not in path else ())


# --- Which files a request is sure to change, and which it only names


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
    sentences = SENTENCES.split(_QUOTED_FILE.sub(r"\1", request))
    paths_kept = {path for sentence in sentences if _UNSURE.search(sentence) for path in named_paths(sentence)}
    expected: dict[str, bool] = {}

    for sentence in sentences if orders_a_change(request) else ():
        order = ORDER.match(sentence)
        lists = [*_FILES.finditer(sentence)]
        if order is None or not lists:
            continue

        verb = order[0].split()[-1]

        if _TESTED.match(sentence):
            tests = [path for path in _INTO.findall(sentence) if IS_TEST.search(path)]
        else:
            tests = []

        if verb.lower() == "move":
            targets = _FROM.findall(sentence)[:1]
        elif len(tests) == 1:
            targets = tests
        else:
            targets = []

        expected |= {path: True for path in targets if path not in paths_kept}
        lists_used = lists if verb.lower() == "rename" else lists[:1]
        head = verb + sentence[order.end() : lists_used[-1].start()].removesuffix("both ").rstrip()
        files = [path for match in lists_used for path in _FILE_NAME.findall(match[0]) if path not in paths_kept]
        several = len(files) > 1 and not any(map(IS_TEST.search, files))

        if not _CONTEXT.search(head) and not _ONWARDS.match(sentence, lists_used[-1].end()):
            is_made = _TO_MAKE.fullmatch(head) is not None
            expected |= dict.fromkeys(files, not is_made) if is_made or (several and _TO_CHANGE.fullmatch(head)) else {}

    return expected
