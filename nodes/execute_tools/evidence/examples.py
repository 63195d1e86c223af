"""The examples of a Python text, the definitions that they belong to, and what became of them in words. Pure."""

import ast
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import groupby
from typing import Final, NamedTuple

from mendgraph.nodes.execute_tools.edits.python_text import Function, SyntaxProblem, parse
from mendgraph.nodes.records import JsonMap

MOST_EXAMPLES: Final = 200
"""Examples of one text that are run."""

_NAMES = re.compile(r"[^\W\d]\w*")


class Origin(StrEnum):
    """Where an example stands."""

    DOCSTRING = "docstring"
    TASK = "task"


class Kind(StrEnum):
    """What is compared: printed output as doctest does, a value, or an exception's name."""

    OUTPUT = "output"
    VALUE = "value"
    RAISES = "raises"


@dataclass(frozen=True)
class Example:
    """`source` is run and must come to `want`; `name` is the definition it belongs to, "" for the module.

    `raises` is the error that an OUTPUT must end with, as doctest writes it. `options` are doctest's own, by number.
    """

    name: str
    source: str
    want: str
    origin: Origin
    kind: Kind = Kind.OUTPUT
    raises: str | None = None
    options: tuple[tuple[int, bool], ...] = ()

    @property
    def words(self) -> frozenset[str]:
        """All names in it."""
        return frozenset(_NAMES.findall(self.source))

    @property
    def code(self) -> str:
        """The source, equal for equal code."""
        tree = parse(self.source)
        return self.source if isinstance(tree, SyntaxProblem) else ast.unparse(tree)


def docstring_examples(text: str) -> tuple[Example, ...]:
    """The `>>>` examples of all docstrings, in order; none of a text that is not Python."""
    tree = parse(text)
    if isinstance(tree, SyntaxProblem):
        return ()
    found = (example for name, docstring in _docstrings(tree) if ">>>" in docstring for example in _of(name, docstring))
    return tuple(found)[:MOST_EXAMPLES]


def grouped(examples: Iterable[Example]) -> list[tuple[Example, ...]]:
    """Examples that share their names: those of one docstring; each of a task stands alone."""
    keyed = (
        (example, index if example.origin is Origin.TASK else example.name) for index, example in enumerate(examples)
    )
    return [tuple(example for example, _ in group) for _, group in groupby(keyed, key=lambda each: each[1])]


def as_request(path: str, text: str | None, examples: Sequence[Example]) -> JsonMap:
    """The form in which `Checks.run_examples` takes the examples of one module."""
    groups = [
        [
            {
                "source": each.source,
                "want": each.want,
                "kind": each.kind.value,
                "raises": each.raises,
                "options": [list(option) for option in each.options],
            }
            for each in group
        ]
        for group in grouped(examples)
    ]
    return {"path": path, "text": text, "groups": groups}


def definitions(text: str, *, with_docstrings: bool = False) -> dict[str, str]:
    """What each function, class and method (`Class.method`) of a module is, as a text that is equal for equal code.

    A class is what it has beside its methods, and "" what is no definition. A text that is not Python has none.
    """
    tree = parse(text)
    found: dict[str, str] = {}
    if isinstance(tree, SyntaxProblem):
        return found
    if not with_docstrings:
        tree = _WithoutDocstrings().visit(tree)
    for node in tree.body:
        name = node.name if isinstance(node, Function | ast.ClassDef) else ""
        if isinstance(node, ast.ClassDef):
            methods = [member for member in node.body if isinstance(member, Function)]
            found |= {f"{name}.{method.name}": ast.dump(method) for method in methods}
            node.body = [member for member in node.body if not isinstance(member, Function)]
        found[name] = found.get(name, "") + ast.dump(node)
    return found


def both(asked: Sequence[Example], documented: Iterable[Example]) -> tuple[Example, ...]:
    """The examples of a task, and those of docstrings about which the task says nothing else."""
    known = {each.code for each in asked}
    return (*asked, *(each for each in documented if each.code not in known))


def last_part(name: str) -> str:
    """`Stack.pop` -> `pop`."""
    return name.rpartition(".")[2]


def _of(name: str, docstring: str) -> Iterator[Example]:
    import doctest  # 6 ms, which a run without Python need not spend

    try:
        parsed = doctest.DocTestParser().get_examples(docstring)
    except ValueError:  # inconsistent indentation
        return
    for each in parsed:
        if not each.options.get(doctest.SKIP):
            options = tuple((flag, on) for flag, on in each.options.items() if flag & doctest.COMPARISON_FLAGS)
            yield Example(name, each.source, each.want, Origin.DOCSTRING, raises=each.exc_msg, options=options)


def _docstrings(tree: ast.Module) -> Iterator[tuple[str, str]]:
    yield "", ast.get_docstring(tree) or ""
    for node in tree.body:
        if isinstance(node, Function | ast.ClassDef):
            yield node.name, ast.get_docstring(node) or ""
            for member in node.body if isinstance(node, ast.ClassDef) else ():
                if isinstance(member, Function | ast.ClassDef):
                    yield f"{node.name}.{member.name}", ast.get_docstring(member) or ""


class _WithoutDocstrings(ast.NodeTransformer):
    def visit_Expr(self, node: ast.Expr) -> ast.Expr | None:
        is_text = isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        return None if is_text else node


LONGEST_VALUE: Final = 160
"""Characters of a value, an error or a piece of code that a sentence shows."""


class Status(StrEnum):
    """What an example came to. UNKNOWN: it did not run, or the code is not to blame for how it went."""

    PASSED = "passed"
    DIFFERENT = "different"
    RAISED = "raised"
    ENDLESS = "endless"
    UNKNOWN = "unknown"


FAILING: Final = frozenset({Status.DIFFERENT, Status.RAISED, Status.ENDLESS})


class Result(NamedTuple):
    """The status, and what came instead: the value or the error."""

    status: Status = Status.UNKNOWN
    told: str = ""


class ModuleRun(NamedTuple):
    """What the examples of one module came to, in their order.

    `error` says why the module could not be loaded, and `own` that its own code is to blame for that.
    """

    results: tuple[Result, ...]
    loaded: bool = False
    own: bool = False
    error: str = ""


def read_run(answer: JsonMap, count: int) -> ModuleRun:
    """The answer of `Checks.run_examples` about a module with `count` examples."""
    told = [Result(Status(status), text) for status, text in answer["results"]]
    results = (told + [Result()] * count)[:count]
    return ModuleRun(tuple(results), answer["loaded"], answer["own"], answer["error"])


def failures(examples: Sequence[Example], results: Iterable[Result], seconds: float) -> list[tuple[int, str]]:
    """The places of the failing examples, each with its sentence; `seconds` is what all of them were given.

    Of those that share their names only the first is told, as the others may follow from it.
    """
    found: list[tuple[int, str]] = []
    start, left = 0, iter(results)
    for group in grouped(examples):
        ran = list(zip(group, left, strict=False))
        first = next((index for index, (_, result) in enumerate(ran) if result.status in FAILING), None)
        if first is not None:
            example, result = ran[first]
            setup = [each.source for each in group[:first] if not each.want] if example.kind is Kind.OUTPUT else []
            found.append((start + first, sentence(example, result, seconds, setup)))
        start += len(group)
    return found


def sentence(example: Example, result: Result, seconds: float, setup: Sequence[str] = ()) -> str:
    """What is wrong, in words; `setup` are the lines of the example before it."""
    code = _code([*setup, example.source])
    if result.status is Status.ENDLESS:
        return f"{code} does not end within {seconds:g} s."
    came = f"raises {_short(result.told)}" if result.status is Status.RAISED else f"gives {_short(result.told)}"
    return f"{code} {came}, but must {_wanted(example)}."


def _wanted(example: Example) -> str:
    if example.kind is Kind.RAISES:
        return f"raise {example.want}"
    if example.raises is not None:
        return f"raise {_short(example.raises)}"
    return f"give {_short(example.want)}"


def _code(sources: Sequence[str]) -> str:
    lines = [" ".join(each.split()) if "\n" in each.strip() else each.strip() for each in sources]
    whole = "; ".join(lines)
    return whole if len(whole) <= LONGEST_VALUE else _short(lines[-1])


def _short(text: str) -> str:
    line = " / ".join(each.rstrip() for each in text.strip().splitlines()) or "nothing"
    return line if len(line) <= LONGEST_VALUE else line[:LONGEST_VALUE] + "..."
