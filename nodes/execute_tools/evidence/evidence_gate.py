"""What results of examples and tests say about an edit. Pure.

An edit of a small model is judged before it is written, by the examples of the request and by those that documented the
file before the turn, so that a changed docstring cannot hide a failure. The same examples on the text before the edit
show what it has broken. Examples that cannot be run, and those that the turn has written, do not count against it.

The second part decides which failing tests count against a turn's changes, and what passing ones are worth.
"""

import posixpath
import re
from collections.abc import Collection, Iterable, Set as AbstractSet
from dataclasses import dataclass
from typing import Final, NamedTuple

from mendgraph.nodes.execute_tools.edits.python_text import SyntaxProblem, parse
from mendgraph.nodes.execute_tools.evidence.checks import RanTests
from mendgraph.nodes.execute_tools.evidence.examples import (
    Example,
    ModuleRun,
    Origin,
    Result,
    Status,
    definitions,
    docstring_examples,
    failures,
    merged_examples,
    task_examples,
)
from mendgraph.nodes.language.documents import defined_names
from mendgraph.nodes.language.request import Request, read_request
from mendgraph.nodes.workspace.files.text_files import LARGEST_TEXT

MOST_NAMED: Final = 3  # failing examples that a refusal names
DAMAGE = re.compile(r"(?:NameError|UnboundLocalError|AttributeError|RecursionError)\b")
"""Errors that are faults even if the edit changes what the code does."""
_OWN_DAMAGE = re.compile(r"(?:NameError|UnboundLocalError)\b")  # which no change of another file repairs


@dataclass(frozen=True)
class GatePlan:
    """The examples that judge an edit.

    Attributes:
        request: what the request asks for.
        examples: all of them; they run on the new text, and on the old one if it exists (`compare`).
        meant: those of definitions that the edit changes or the request names.
        fresh: those that the turn has added and that count, as the request has them or is about documentation.
        compare: whether there is an old text.
        elsewhere: whether the request names other files, without which this one may not work yet.
    """

    request: Request
    examples: tuple[Example, ...]
    meant: frozenset[Example]
    fresh: frozenset[Example]
    compare: bool
    elsewhere: bool


def plan_gate(path: str, before: str | None, after: str, task: str, first: str) -> GatePlan | None:
    """Return the examples that judge an edit, or None if it changes no Python code.

    `before` is None for a new file, and `first` its text before the turn, or "".
    """
    if not path.endswith(".py") or max(len(before or ""), len(after)) > LARGEST_TEXT:
        return None

    request = read_request(task)
    old = definitions(before or "", with_docstrings=request.documents)
    new = definitions(after, with_docstrings=request.documents)
    touched: set[str] = set()

    for name in {*old, *new}:
        if old.get(name) != new.get(name):
            touched.update((name, name.partition(".")[0]))

    if not touched or not new:
        return None

    defined = [name for name in new if name and "." not in name]
    added = [name for name in defined if name not in old]
    module = posixpath.basename(path).removesuffix(".py")
    of_task = task_examples(task, defined, module, added)
    documented = _documented(first, after, task, new.keys())
    words = frozenset(re.findall(r"\w+", task))
    meant: list[Example] = []
    others: list[Example] = []

    for example in documented:
        if example.name in touched or example.name.rpartition(".")[2] in words:
            meant.append(example)
        else:
            others.append(example)

    of_one_name = len({example.name for example in of_task}) == 1
    meant_of_task = [example for example in of_task if of_one_name or example.name in touched]

    return GatePlan(
        request=request,
        examples=merged_examples(of_task, [*meant, *others]),
        meant=frozenset([*meant, *meant_of_task]),
        fresh=frozenset(documented) - frozenset(docstring_examples(first, in_words=bool(task))),
        compare=before is not None,
        elsewhere=request.speaks_of_others(path),
    )


def gate_verdict(plan: GatePlan, after: ModuleRun, before: ModuleRun | None, seconds: float) -> str | None:
    """Return why the edit is refused, as sentences after `With this edit `, or None.

    `before` is None for a new file.
    """
    if not after.loaded:  # of a new file only an unknown name counts
        if before is None:
            could_load = DAMAGE.match(after.error) is not None
        else:
            could_load = before.loaded

        if after.own and could_load:
            return f"the file cannot be imported: {after.error}."
        return None

    baseline = before.results if before is not None else ()
    messages: list[str] = []

    for place, words in failures(plan.examples, after.results, seconds):
        result_before = baseline[place] if baseline else Result()
        if _counts(plan, place, after.results[place], result_before):
            messages.append(words)

    return " ".join(messages[:MOST_NAMED]) or None


def added_by_turn(before: str, after: str, task: str) -> frozenset[Example]:
    """Return the examples of `after` that neither the task nor `before`, also with renamed names, has."""
    request = read_request(task)
    renamed = before
    in_words = bool(task)

    for old, name in request.renames.items():
        renamed = re.sub(rf"\b{old}\b", name, renamed)

    examples_before = {*docstring_examples(before, in_words=in_words), *docstring_examples(renamed, in_words=in_words)}
    task_text = "" if request.repairs else " ".join(task.split())
    added: set[Example] = set()

    for example in docstring_examples(after, in_words=in_words):
        text = " ".join(f"{example.source} {example.want}".split())
        if example not in examples_before and text not in task_text:
            added.add(example)

    return frozenset(added)


def _documented(before: str, after: str, task: str, names: AbstractSet[str]) -> list[Example]:
    """Return the docstring examples that judge an edit: the old ones, and proving ones of new definitions.

    `names` are the definitions after the edit. Examples of a definition that calls a removed one are out of date.
    """
    in_words = bool(task)
    documented = docstring_examples(after, in_words=in_words)
    if read_request(task).documents:
        return list(documented)

    old_names = definitions(before).keys()
    unproven = added_by_turn(before, after, task)
    examples: list[Example] = []

    for example in docstring_examples(before, in_words=in_words):
        if not example.name or example.name in names:
            examples.append(example)

    for example in documented:
        if example.name in names - old_names and example not in unproven:
            examples.append(example)

    removed = {name.rpartition(".")[2] for name in old_names - names}
    outdated: set[str] = set()
    for example in examples:
        if example.words & removed:
            outdated.add(example.name)

    return [example for example in examples if example.name not in outdated]


def _counts(plan: GatePlan, place: int, now: Result, then: Result) -> bool:
    """Return whether a failing example counts against the edit; `then` is its result before, or unknown."""
    request = plan.request
    example = plan.examples[place]
    worked = then.status is Status.PASSED

    if plan.elsewhere and not worked:
        return not plan.compare and _OWN_DAMAGE.match(now.text) is not None
    if example in plan.fresh:
        return True

    of_task = example.origin is Origin.TASK
    if not worked:
        return (of_task or request.repairs) and example in plan.meant
    if of_task or request.repairs or request.keeps or not request.changes:
        return True

    return now.status is Status.ENDLESS or DAMAGE.match(now.text) is not None


# --- Tests


class Distinction(NamedTuple):
    """What passing tests are worth, by their results on the files before the session's first change.

    Attributes:
        failed_before: tests that failed there.
        new_code: tests that could not run there, as they name what did not exist.
        indistinct: tests that the session changed and that passed there as well, as did all other cases of a
            parametrized test.
        unknown: tests that the session changed and whose results there are not known.
    """

    failed_before: tuple[str, ...] = ()
    new_code: tuple[str, ...] = ()
    indistinct: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()


_ABSENT_NAME: Final = re.compile(
    r"No module named '([\w.]+)'|cannot import name '(\w+)'|has no attribute '(\w+)'|name '(\w+)' is not defined"
)


def failed_already(now: RanTests, before: RanTests, new: Collection[str]) -> list[str]:
    """Return the tests that failed `before` the turn as well, and so do not count.

    Tests that fail by an unknown name only now, or that lacked one of the `new` names, count.
    """
    failed_before: list[str] = []

    for test, text in now.failed.items():
        text_before = before.failed.get(test)
        if text_before is None:
            continue

        newly_damaged = _OWN_DAMAGE.search(text) and not _OWN_DAMAGE.search(text_before)
        if not newly_damaged and _absent_names(text_before).isdisjoint(new):
            failed_before.append(test)

    return failed_before


def _absent_names(text: str) -> set[str]:
    """Return the parts of the names that a failure says do not exist."""
    parts: set[str] = set()
    for names in _ABSENT_NAME.findall(text):
        parts.update(".".join(names).split("."))

    return parts


def distinguish(now: RanTests, then: RanTests, new: Collection[str], deleted: Collection[str]) -> Distinction:
    """Return what the passing tests of one file are worth; `then` are the results before the session.

    `new` are names that its changes define, `deleted` the modules that it deleted.
    """
    failed_before: list[str] = []
    new_code: list[str] = []
    indistinct: list[str] = []
    unknown: list[str] = []
    file_failure = next((text for test, text in then.failed.items() if test.endswith(".py")), None)

    for test in now.changed:
        text = then.failed.get(test, file_failure)
        absent = _absent_names(text or "")

        if test in then.changed:
            indistinct.append(test)
        elif text is None or then.timed_out or absent.intersection(deleted):
            unknown.append(test)
        elif absent.intersection(new):
            new_code.append(test)
        else:
            failed_before.append(test)

    telling = {_without_case(test) for test in (*failed_before, *new_code)}
    indistinct = [test for test in indistinct if _without_case(test) not in telling]
    failed_before += [test for test in now.passing if test in then.failed]
    return Distinction(tuple(failed_before), tuple(new_code), tuple(indistinct), tuple(unknown))


def _without_case(test: str) -> str:
    """Return the name of a parametrized test of pytest without its case: `test_add` for `test_add[1-2]`."""
    return test.partition("[")[0]


def new_names(texts: Iterable[tuple[str, str]]) -> frozenset[str]:
    """Return the names that Python files define only after a change, from their texts before and after."""
    names: set[str] = set()

    for before, after in texts:
        old = parse(before)
        new = parse(after)
        if isinstance(new, SyntaxProblem):
            continue

        added = defined_names(new)
        if not isinstance(old, SyntaxProblem):
            added = added - defined_names(old)

        names |= added

    return frozenset(names)
