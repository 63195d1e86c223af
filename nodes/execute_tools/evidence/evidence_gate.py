"""May an edit of a Python file stay, as far as its examples tell? The decision; pure, nothing is run here.

What is run are the examples that the request gives, and those that documented the file before the turn, so that a
changed docstring cannot hide a failure; the same examples on the text before the edit tell what it has broken. What
cannot be run, and what the turn itself has written, never speaks against an edit. Below it: which failing tests count
against a turn's changes, and whether the names are as the request asks.
"""

import ast
import posixpath
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Set as AbstractSet
from dataclasses import dataclass
from typing import Final, NamedTuple

from mendgraph.nodes.execute_tools.edits.python_text import Function, SyntaxProblem, parse
from mendgraph.nodes.execute_tools.edits.request import Move, Request, is_file, module_of, read_request
from mendgraph.nodes.execute_tools.evidence.checks import RanTests
from mendgraph.nodes.execute_tools.evidence.examples import (
    Example,
    ModuleRun,
    Origin,
    Result,
    Status,
    both,
    definitions,
    docstring_examples,
    failures,
    task_examples,
)
from mendgraph.nodes.execute_tools.files.text_files import LARGEST_TEXT

MOST_TOLD: Final = 3  # failing examples that a refusal names
DAMAGE = re.compile(r"(?:NameError|UnboundLocalError|AttributeError|RecursionError)\b")
"""What an edit that was to change what the code does has not meant."""
_OWN_DAMAGE = re.compile(r"(?:NameError|UnboundLocalError)\b")  # what no change of another file mends


@dataclass(frozen=True)
class GatePlan:
    """What has to be run to judge an edit.

    `examples` are run on the new text, and on the old one where there is one (`compare`). `meant` are those of what the
    edit changes or the request names, and `fresh` those that the turn has added and that count, as they stand in the
    request, or as it asks for documentation. `elsewhere` says that the request names other files, without which this
    one may not be right yet.
    """

    request: Request
    examples: tuple[Example, ...]
    meant: frozenset[Example]
    fresh: frozenset[Example]
    compare: bool
    elsewhere: bool


def plan_gate(path: str, before: str | None, after: str, task: str, first: str) -> GatePlan | None:
    """What to run for this edit; None where it changes no code, or is no Python.

    `before` is None for a new file, and `first` what it held before the turn, "" where it was not there.
    """
    if not path.endswith(".py") or max(len(before or ""), len(after)) > LARGEST_TEXT:
        return None
    request = read_request(task)
    old, new = (definitions(text or "", with_docstrings=request.documents) for text in (before, after))
    touched = {name for name in {*old, *new} if old.get(name) != new.get(name)}
    touched |= {name.partition(".")[0] for name in touched}
    if not touched or not new:
        return None
    defined = [name for name in new if name and "." not in name]
    module = posixpath.basename(path).removesuffix(".py")
    asked = task_examples(task, defined, module, [name for name in defined if name not in old])
    documented = _documented(first, after, task, new.keys())
    named = frozenset(re.findall(r"\w+", task))
    meant = [each for each in documented if each.name in touched or each.name.rpartition(".")[2] in named]
    others = [each for each in documented if each not in meant]
    one = len({each.name for each in asked}) == 1
    return GatePlan(
        request=request,
        examples=both(asked, [*meant, *others]),
        meant=frozenset(meant).union(each for each in asked if one or each.name in touched),
        fresh=frozenset(documented) - frozenset(docstring_examples(first)),
        compare=before is not None,
        elsewhere=request.speaks_of_others(path),
    )


def gate_verdict(plan: GatePlan, after: ModuleRun, before: ModuleRun | None, seconds: float) -> str | None:
    """Why the edit may not stay, as sentences after `With this edit `; None where nothing speaks against it.

    `before` is None for a new file.
    """
    if not after.loaded:  # no edit may break what could be imported; of a new file only an unknown name counts
        was_well = before.loaded if before is not None else DAMAGE.match(after.error) is not None
        return f"the file cannot be imported: {after.error}." if after.own and was_well else None
    baseline = before.results if before is not None else ()
    told = [
        words
        for place, words in failures(plan.examples, after.results, seconds)
        if _counts(plan, place, after.results[place], baseline[place] if baseline else Result())
    ]
    return " ".join(told[:MOST_TOLD]) or None


def brought(before: str, after: str, task: str) -> frozenset[Example]:
    """The examples of `after` that prove nothing: neither `before`, also under new names, nor the task has them."""
    request, renamed = read_request(task), before
    for old, name in request.renames.items():
        renamed = re.sub(rf"\b{old}\b", name, renamed)
    known = {*docstring_examples(before), *docstring_examples(renamed)}
    said = "" if request.repairs else " ".join(task.split())
    new = frozenset(docstring_examples(after)) - known
    return frozenset(each for each in new if " ".join(f"{each.source} {each.want}".split()) not in said)


def _documented(before: str, after: str, task: str, new: AbstractSet[str]) -> list[Example]:
    if read_request(task).documents:
        return list(docstring_examples(after))
    old = definitions(before).keys()
    gone, own = {name.rpartition(".")[2] for name in old - new}, brought(before, after, task)
    kept = [each for each in docstring_examples(before) if each.name == "" or each.name in new]
    added = [each for each in docstring_examples(after) if each.name in new - old and each not in own]
    outdated = {each.name for each in (*kept, *added) if each.words & gone}
    return [each for each in (*kept, *added) if each.name not in outdated]


def _counts(plan: GatePlan, place: int, now: Result, then: Result) -> bool:
    """Whether a failing example speaks against the edit; `then` is its result before, unknown where it was not run."""
    request, example = plan.request, plan.examples[place]
    worked = then.status is Status.PASSED
    if plan.elsewhere and not worked:
        return not plan.compare and _OWN_DAMAGE.match(now.told) is not None
    if example in plan.fresh:
        return True
    asked = example.origin is Origin.TASK
    if not worked:
        return (asked or request.repairs) and example in plan.meant
    settled = asked or request.repairs or request.keeps or not request.changes
    return settled or now.status is Status.ENDLESS or DAMAGE.match(now.told) is not None


# --- Tests

_TO_PASS: Final = re.compile(
    r"\b(?:tests?|checks?|suite|build)\b[^.\n]{0,60}\b(?:pass(?:es|ing)?|succeeds?|green|fail(?:s|ed|ing)?|red|broken)\b"
    r"|\b(?:fix|repair|mend|failing|broken)\s+(?:(?:the|all|its|our|failing|broken|unit)\s+){0,3}(?:tests?|checks?|suite"
    r"|build)\b",
    re.IGNORECASE,
)
_COMMON: Final = frozenset({"make", "go", "sh", "test", "check", ""})  # programs with the names of usual words


def failed_already(now: RanTests, before: RanTests, request: str, defined: Collection[str]) -> list[str]:
    """The failing tests that do not count: they failed `before`, and the request does not name them.

    A request that wants something repaired or made is about more: while nothing works that failed before, about those
    that run what was changed, those that are called like what it names of what the changed files have `defined`, and
    all where it names nothing of that. A name that is not known now was known before.
    """
    asked, words = read_request(request), frozenset(re.findall(r"\w+", request))
    subjects = words.intersection(defined)
    insists = (asked.repairs or asked.creates) and before.failed.keys() <= now.failed.keys()

    def counts(test: str) -> bool:
        damaged = _OWN_DAMAGE.search(now.failed[test]) and not _OWN_DAMAGE.search(before.failed[test])
        if damaged or _TO_PASS.search(request) or test in request or words & _names_of(test, now.name):
            return True
        near = test in now.near or (asked.repairs and (not subjects or any(each in test for each in subjects)))
        return insists and near and test != now.name

    return [each for each in now.failed if each in before.failed and not counts(each)]


class Distinction(NamedTuple):
    """What tests that pass after a session's changes are worth, by what became of them on the files before it.

    Those that `failed_before` show the difference. Those of `new_code` could not run before, as what they name was not
    there. `indistinct` are tests of the session itself that passed before as well, and `unknown` its others.
    """

    failed_before: tuple[str, ...] = ()
    new_code: tuple[str, ...] = ()
    indistinct: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()


_ABSENT_NAME: Final = re.compile(
    r"No module named '([\w.]+)'|cannot import name '(\w+)'|has no attribute '(\w+)'|name '(\w+)' is not defined"
)


def distinguish(now: RanTests, then: RanTests, new: Collection[str], deleted: Collection[str]) -> Distinction:
    """What the passing tests of one file are worth; `then` says what became of them before the session.

    `new` are names that its changes define, `deleted` those of modules that could not be put back.
    """
    kinds: dict[str, list[str]] = {"failed_before": [], "new_code": [], "indistinct": [], "unknown": []}
    whole = next((text for test, text in then.failed.items() if test.endswith(".py")), None)
    for test in now.changed:
        text = then.failed.get(test, whole)
        absent = {part for names in _ABSENT_NAME.findall(text or "") for name in names for part in name.split(".")}
        if test in then.changed:
            kinds["indistinct"].append(test)
        elif text is None or " does not end within " in text or absent.intersection(deleted):
            kinds["unknown"].append(test)
        else:
            kinds["new_code" if absent.intersection(new) else "failed_before"].append(test)
    kinds["failed_before"] += [test for test in now.passing if test in then.failed]
    return Distinction(*map(tuple, kinds.values()))


def new_names(texts: Iterable[tuple[str, str]]) -> frozenset[str]:
    """What Python files define that they did not before, from their texts before and after."""
    found: set[str] = set()
    for both_texts in texts:
        old, new = (parse(text) for text in both_texts)
        if not isinstance(new, SyntaxProblem):
            found |= _defined(new) - (set() if isinstance(old, SyntaxProblem) else _defined(old))
    return frozenset(found)


def _names_of(test: str, command: str) -> frozenset[str]:
    """The words that name a test: its function's and its file's, or the program's of a command."""
    if test == command:
        return frozenset({posixpath.basename(test.partition(" ")[0])}) - _COMMON
    name = test.partition(" (")[0]
    path, _, function = (name, "", "") if name.endswith(".py") else name.rpartition("::")
    parts = re.split(r"[.\[]", function)
    names = {posixpath.basename(path).partition(".")[0], parts[0], parts[-1]}
    return frozenset(names if " " not in path else ())


# --- What a request asks of names

MOST_LINES: Final = 5  # lines that a sentence names


def unmet(request: str, texts: Mapping[str, str]) -> list[str]:
    """What is not as the request asks, in sentences.

    They read like `load is still in app.py, line 3, 7.`. `texts` are the files that it was about, by path; what is in
    others is not known here, and names are those of Python files.
    """
    python = ((path, parse(text)) for path, text in texts.items() if path.endswith(".py"))
    trees = {path: tree for path, tree in python if not isinstance(tree, SyntaxProblem)}
    if not trees:
        return []
    asked = read_request(request)
    modules = {path.rpartition("/")[2].removesuffix(".py") for path in trees}
    told: list[str] = []
    for each in asked.expectations:
        for path, tree in trees.items():
            if lines := sorted(set(_use_lines(tree, each.gone, frozenset(modules)))):
                told.append(f"{each.gone} is still in {path}, line {', '.join(map(str, lines[:MOST_LINES]))}.")
        if each.defined and not any(each.defined in _defined(tree) for tree in trees.values()):
            told.append(f"{each.defined} is not defined in {' or '.join(trees)}.")
    code = "\n".join(texts.values()).replace("-", "_")  # an option's name may be that of a parameter
    flags = (flag for flag in sorted(asked.flags) if flag.replace("-", "_") not in code)
    told += (f"--{flag} is not in {' or '.join(texts)}." for flag in flags)
    return [*told, *(words for move in asked.moves for words in _not_moved(move, trees))]


def _not_moved(move: Move, trees: Mapping[str, ast.Module]) -> Iterator[str]:
    """Where a definition that is moved still is, or is taken from; not of which file, where several may be meant."""
    name, new = move.name, module_of(move.new)
    holders = [path for path, tree in trees.items() if name in _top_names(tree)]
    left = [path for path in holders if move.leaves(path)]
    if move.old or len(left) == 1:
        yield from (f"{name} is still defined in {path}." for path in left)
    taken = any(each for tree in trees.values() for each in _imports_of(tree, name, {new}))
    if (move.certain or taken) and not any(is_file(path, move.new) for path in holders):
        yield f"{name} is not defined in {move.new}."
    olds = {module_of(path) for path in ([move.old] if move.old else {*trees} - {*holders}) if "__init__" not in path}
    for path, tree in trees.items():
        if lines := sorted(set(_imports_of(tree, name, olds - {new}))):
            numbers = ", ".join(map(str, lines[:MOST_LINES]))
            yield f"{name} is to be imported from {new} in {path}, line {numbers}."


def _top_names(tree: ast.Module) -> set[str]:
    targets = (each for node in tree.body for each in getattr(node, "targets", [getattr(node, "target", node)]))
    return {getattr(each, "id", "") or getattr(each, "name", "") for each in targets}


def _imports_of(tree: ast.Module, name: str, modules: AbstractSet[str]) -> Iterator[int]:
    """Where a name is imported from one of these modules, or used as an attribute of one that is imported."""
    nodes = [*ast.walk(tree)]
    imports = (node for node in nodes if isinstance(node, ast.Import | ast.ImportFrom))
    bound = {each.asname or each.name for node in imports for each in node.names}
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and (node.module or "").rpartition(".")[2] in modules:
            yield from (node.lineno for each in node.names if each.name == name)
        elif isinstance(node, ast.Attribute) and node.attr == name and getattr(node.value, "id", "") in bound & modules:
            yield node.lineno


def _use_lines(tree: ast.Module, name: str, modules: frozenset[str]) -> Iterator[int]:
    """Where the name is defined, imported or used; not where a function has a variable of its own of that name."""
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, Function | ast.Lambda) and name in _own_variables(node):
            continue
        waiting.extend(ast.iter_child_nodes(node))
        used = name in (getattr(node, "id", ""), getattr(node, "name", ""))
        used |= isinstance(node, ast.ImportFrom) and any(alias.name == name for alias in node.names)
        if isinstance(node, ast.Attribute) and node.attr == name:
            used = getattr(node.value, "id", "") in modules | {"self", "cls"}
        if used and not isinstance(node, ast.alias):
            yield getattr(node, "lineno", 0)


def _own_variables(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) -> set[str]:
    inner = [*ast.walk(node)]
    outer = {name for each in inner if isinstance(each, ast.Global | ast.Nonlocal) for name in each.names}
    stored = {each.id for each in inner if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)}
    return {each.arg for each in ast.walk(node.args) if isinstance(each, ast.arg)} | (stored - outer)


def _defined(tree: ast.Module) -> set[str]:
    stored = (each for each in ast.walk(tree) if isinstance(getattr(each, "ctx", None), ast.Store))
    names = {each.name for each in ast.walk(tree) if isinstance(each, Function | ast.ClassDef)}
    return names | {getattr(each, "id", "") or getattr(each, "attr", "") for each in stored}
