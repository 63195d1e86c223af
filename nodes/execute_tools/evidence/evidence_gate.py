"""May an edit of a Python file stay, as far as its examples tell? The decision; pure, nothing is run here.

What is run are the examples that the request gives, and those that documented the file before the turn, so that a
changed docstring cannot hide a failure; the same examples on the text before the edit tell what it has broken. What
cannot be run, and what the turn itself has written, never speaks against an edit. Below it: which failing tests count
against a turn's changes, and what those that pass are worth.
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
    both,
    definitions,
    docstring_examples,
    failures,
    task_examples,
)
from mendgraph.nodes.execute_tools.files.text_files import LARGEST_TEXT
from mendgraph.nodes.language.documents import defined_names
from mendgraph.nodes.language.request import Request, read_request

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
    examples_asked = task_examples(task, defined, module, [name for name in defined if name not in old])
    documented = _documented(first, after, task, new.keys())
    named = frozenset(re.findall(r"\w+", task))
    meant = [example for example in documented if example.name in touched or example.name.rpartition(".")[2] in named]
    others = [example for example in documented if example not in meant]
    one = len({has_one_name.name for has_one_name in examples_asked}) == 1

    return GatePlan(
        request=request,
        examples=both(examples_asked, [*meant, *others]),
        meant=frozenset(meant).union(example for example in examples_asked if one or example.name in touched),
        fresh=frozenset(documented) - frozenset(docstring_examples(first, in_words=bool(task))),
        compare=before is not None,
        elsewhere=request.speaks_of_others(path),
    )


def gate_verdict(plan: GatePlan, after: ModuleRun, before: ModuleRun | None, seconds: float) -> str | None:
    """Why the edit may not stay, as sentences after `With this edit `; None where nothing speaks against it.

    `before` is None for a new file.
    """
    if not after.loaded:  # no edit may break what could be imported; of a new file only an unknown name counts
        if before is not None:
            was_well = before.loaded
        else:
            was_well = DAMAGE.match(after.error) is not None

        if after.own and was_well:
            return f"the file cannot be imported: {after.error}."
        return None

    baseline = before.results if before is not None else ()
    messages = [
        words
        for place, words in failures(plan.examples, after.results, seconds)
        if _counts(plan, place, after.results[place], baseline[place] if baseline else Result())
    ]

    return " ".join(messages[:MOST_TOLD]) or None


def brought(before: str, after: str, task: str) -> frozenset[Example]:
    """The examples of `after` that prove nothing: neither `before`, also under new names, nor the task has them."""
    request = read_request(task)
    renamed = before
    in_words = bool(task)

    for old, name in request.renames.items():
        renamed = re.sub(rf"\b{old}\b", name, renamed)

    examples_before = {*docstring_examples(before, in_words=in_words), *docstring_examples(renamed, in_words=in_words)}
    task_text = "" if request.repairs else " ".join(task.split())
    new = frozenset(docstring_examples(after, in_words=in_words)) - examples_before

    return frozenset(
        example for example in new if " ".join(f"{example.source} {example.want}".split()) not in task_text
    )


def _documented(before: str, after: str, task: str, new: AbstractSet[str]) -> list[Example]:
    in_words = bool(task)
    if read_request(task).documents:
        return list(docstring_examples(after, in_words=in_words))

    old = definitions(before).keys()
    gone = {name.rpartition(".")[2] for name in old - new}
    examples_brought = brought(before, after, task)
    examples_kept = [
        example
        for example in docstring_examples(before, in_words=in_words)
        if example.name == "" or example.name in new
    ]
    documented = docstring_examples(after, in_words=in_words)
    added = [example for example in documented if example.name in new - old and example not in examples_brought]
    outdated = {example.name for example in (*examples_kept, *added) if example.words & gone}

    return [example for example in (*examples_kept, *added) if example.name not in outdated]


def _counts(plan: GatePlan, place: int, now: Result, then: Result) -> bool:
    """Whether a failing example speaks against the edit; `then` is its result before, unknown where it was not run."""
    request = plan.request
    example = plan.examples[place]
    worked = then.status is Status.PASSED

    if plan.elsewhere and not worked:
        return not plan.compare and _OWN_DAMAGE.match(now.told) is not None
    if example in plan.fresh:
        return True

    is_asked = example.origin is Origin.TASK
    if not worked:
        return (is_asked or request.repairs) and example in plan.meant

    settled = is_asked or request.repairs or request.keeps or not request.changes
    return settled or now.status is Status.ENDLESS or DAMAGE.match(now.told) is not None


# --- Tests


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


def failed_already(now: RanTests, before: RanTests, new: Collection[str]) -> list[str]:
    """The tests that failed `before` the turn as well, and so do not count.

    Not those that fail now, and not then, for a name that is not known; nor those that lacked one of the `new` names.
    """
    damaged = {test for test, text in now.failed.items() if _OWN_DAMAGE.search(text)}
    damaged -= {test for test, text in before.failed.items() if _OWN_DAMAGE.search(text)}
    lacking = {test for test, text in before.failed.items() if _absent_names(text).intersection(new)}

    return [test for test in now.failed if test in before.failed and test not in damaged | lacking]


def _absent_names(text: str) -> set[str]:
    """The names, and the parts of their dotted names, that a failure says are not there."""
    return {part for names in _ABSENT_NAME.findall(text) for name in names for part in name.split(".")}


def distinguish(now: RanTests, then: RanTests, new: Collection[str], deleted: Collection[str]) -> Distinction:
    """What the passing tests of one file are worth; `then` says what became of them before the session.

    `new` are names that its changes define, `deleted` those of modules that could not be put back.
    """
    kinds: dict[str, list[str]] = {"failed_before": [], "new_code": [], "indistinct": [], "unknown": []}
    test_text = next((text for test, text in then.failed.items() if test.endswith(".py")), None)

    for test in now.changed:
        text = then.failed.get(test, test_text)
        absent = _absent_names(text or "")

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
    tests: set[str] = set()

    for both_texts in texts:
        old, new = (parse(text) for text in both_texts)
        if not isinstance(new, SyntaxProblem):
            tests |= defined_names(new) - (set() if isinstance(old, SyntaxProblem) else defined_names(old))

    return frozenset(tests)
