"""Examples of a Python text and of a request, and sentences about their results. Pure.

A request is read for a few usual forms, such as `median([1, 2]) should return 1.5`. A value that may be the wrong one,
as in "f(1) returns 2", counts only if the request asks for something new. What is code is decided by the parser.
"""

import ast
import builtins
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from functools import lru_cache
from itertools import islice
from typing import Final, NamedTuple

from mendgraph.nodes.execute_tools.edits.python_text import Function, SyntaxProblem, WithoutStrings, parse
from mendgraph.nodes.language.request import read_request
from mendgraph.nodes.records import JsonMap

MOST_EXAMPLES: Final = 200  # examples of one text that are run
_NAMES = re.compile(r"[^\W\d]\w*")
_PARAGRAPHS: Final = re.compile(r"\n\s*\n")
_TABLE: Final = re.compile(r"\|[ \t]*(?:returns?|results?|gives|expected)[ \t]*\|[ \t]*$", re.IGNORECASE | re.MULTILINE)
_ROW: Final = re.compile(r"^([ \t]*\|[^|\n]*\))[ \t]*\|([^|\n]*)\|[ \t]*$", re.MULTILINE)
_FORMULA: Final = re.compile(r"\w\(\s*[^\W\d]\w*\s*\)\s*=(?!=)")


class Origin(StrEnum):
    """The source of an example."""

    DOCSTRING = "docstring"
    TASK = "task"


class Kind(StrEnum):
    """What is compared: the printed output as in doctest, a value, or the name of an exception."""

    OUTPUT = "output"
    VALUE = "value"
    RAISES = "raises"


@dataclass(frozen=True)
class Example:
    """Code and its expected result.

    Attributes:
        name: the definition that the example belongs to, "" for the module.
        source: the code.
        want: the output, the value or the name of the exception.
        origin: where the example stands.
        kind: what is compared.
        raises: the error that an OUTPUT must end with, as doctest writes it.
        options: options of doctest by number.
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
        """All names in the code."""
        return frozenset(_NAMES.findall(self.source))

    @property
    def code(self) -> str:
        """A text that is equal for equal code."""
        tree = parse(self.source)
        if isinstance(tree, SyntaxProblem):
            return self.source

        return ast.unparse(tree)


@lru_cache(maxsize=16)
def docstring_examples(text: str, *, in_words: bool) -> tuple[Example, ...]:
    """Return the examples of all docstrings, in order; none of a text that is not Python.

    They are the `>>>`, and if `in_words` also sentences about the results of calls.
    """
    tree = parse(text)
    if isinstance(tree, SyntaxProblem):
        return ()

    names = frozenset(node.name for node in tree.body if isinstance(node, Function | ast.ClassDef))
    examples: list[Example] = []

    for name, words in _documentation(tree):
        examples += _of(name, words, names, in_words=in_words)
        if len(examples) >= MOST_EXAMPLES:
            break

    return tuple(examples[:MOST_EXAMPLES])


def grouped(examples: Iterable[Example]) -> list[tuple[Example, ...]]:
    """Return groups of examples that share variables: the `>>>` of one definition; each of the others is alone."""
    groups: list[list[Example]] = []

    for example in examples:
        last = groups[-1][-1] if groups else None
        if last is not None and last.kind is Kind.OUTPUT and example.kind is Kind.OUTPUT and last.name == example.name:
            groups[-1].append(example)
        else:
            groups.append([example])

    return [tuple(group) for group in groups]


def as_request(path: str, text: str | None, examples: Sequence[Example]) -> JsonMap:
    """Return the examples of one module in the form that `Checks.run_examples` takes."""
    groups = [[asdict(example) for example in group] for group in grouped(examples)]
    return {"path": path, "text": text, "groups": groups}


def definitions(text: str, *, with_docstrings: bool = False) -> dict[str, str]:
    """Return the functions, classes and methods (`Class.method`) of a module, with texts that are equal for equal code.

    The text of a class leaves out its methods; "" stands for all statements that are no definitions. A text that is not
    Python has none.
    """
    tree = parse(text)
    values: dict[str, str] = {}
    if isinstance(tree, SyntaxProblem):
        return values

    if not with_docstrings:
        tree = WithoutStrings().visit(tree)

    for node in tree.body:
        name = node.name if isinstance(node, Function | ast.ClassDef) else ""

        if isinstance(node, ast.ClassDef):
            for member in node.body:
                if isinstance(member, Function):
                    values[f"{name}.{member.name}"] = ast.dump(member)

            node.body = [member for member in node.body if not isinstance(member, Function)]

        values[name] = values.get(name, "") + ast.dump(node)

    return values


def merged_examples(of_task: Sequence[Example], documented: Iterable[Example]) -> tuple[Example, ...]:
    """Return the examples of a task, and those of docstrings whose calls the task does not have."""
    codes = {example.code for example in of_task}
    return (*of_task, *(example for example in documented if example.code not in codes))


def _of(name: str, words: str, names: Collection[str], *, in_words: bool) -> Iterator[Example]:
    """Yield the examples of the docstring of `name`."""
    if ">>>" not in words:
        if in_words:
            yield from _in_words(name, words, names)
        return

    import doctest  # 6 ms, which only runs with Python spend

    try:
        parts = doctest.DocTestParser().parse(words)
    except ValueError:  # inconsistent indentation
        return

    for part in parts:
        if isinstance(part, str):
            if in_words:
                yield from _in_words(name, part, names)
            continue

        if part.options.get(doctest.SKIP):
            continue

        tree = None if part.want else _tree(part.source)  # a value that the example does not show
        if in_words and tree is not None:
            yield from _in_words(name, part.source, names)

        if tree is None or isinstance(tree.body, ast.Call):
            options = tuple((flag, on) for flag, on in part.options.items() if flag & doctest.COMPARISON_FLAGS)
            yield Example(name, part.source, part.want, Origin.DOCSTRING, raises=part.exc_msg, options=options)


def _in_words(name: str, words: str, names: Collection[str]) -> Iterator[Example]:
    """Yield the examples in sentences, as in a request for something new, without ambiguous ones."""
    if "(" not in words:
        return

    for part in _PARAGRAPHS.split(words[:LONGEST_REQUEST].replace("`", " ")):
        if _FORMULA.search(part):
            continue
        if _TABLE.search(part):
            part = _ROW.sub(r"\1 =\2", part)  # noqa: PLW2901 - the same paragraph as equations

        for example in _called_examples(part, names, "", names):
            is_complete = "..." not in example.want and (example.want[0] != "(" or "," in example.want)
            # The result of a call without arguments depends on earlier calls.
            if is_complete and example.source != f"{example.name}()":
                yield replace(example, name=name, origin=Origin.DOCSTRING)


def _documentation(tree: ast.Module | Function | ast.ClassDef, name: str = "") -> Iterator[tuple[str, str]]:
    """Yield the docstrings, each with the full name of its definition."""
    yield name, ast.get_docstring(tree) or ""
    if isinstance(tree, Function):
        return

    for node in tree.body:
        if isinstance(node, Function | ast.ClassDef):
            yield from _documentation(node, f"{name}.{node.name}".removeprefix("."))


LONGEST_VALUE: Final = 160  # characters of a value, an error or a piece of code that a sentence shows


class Status(StrEnum):
    """The result of an example. UNKNOWN: it did not run, or failed for another reason than the code."""

    PASSED = "passed"
    DIFFERENT = "different"
    RAISED = "raised"
    ENDLESS = "endless"
    UNKNOWN = "unknown"


FAILING: Final = frozenset({Status.DIFFERENT, Status.RAISED, Status.ENDLESS})


class Result(NamedTuple):
    """The status, and the value or the error of an example that did not pass."""

    status: Status = Status.UNKNOWN
    text: str = ""


class ModuleRun(NamedTuple):
    """The results of the examples of one module, in order.

    `error` says why the module could not be loaded, and `own` that its own code is the reason.
    """

    results: tuple[Result, ...]
    loaded: bool = False
    own: bool = False
    error: str = ""


def read_run(answer: JsonMap, count: int) -> ModuleRun:
    """Read the answer of `Checks.run_examples` about a module with `count` examples."""
    results = [Result(Status(status), text) for status, text in answer["results"][:count]]
    missing = [Result()] * (count - len(results))
    return ModuleRun((*results, *missing), answer["loaded"], answer["own"], answer["error"])


def failures(examples: Sequence[Example], results: Iterable[Result], seconds: float) -> list[tuple[int, str]]:
    """Return the indexes of the failing examples, each with its sentence; `seconds` is their time limit.

    Of examples that share variables only the first is reported, as the others may follow from it.
    """
    sentences: list[tuple[int, str]] = []
    start = 0
    unread = iter(results)

    for group in grouped(examples):
        setup: list[str] = []
        reported = False

        for place, (example, result) in enumerate(zip(group, unread, strict=False), start=start):
            if result.status in FAILING and not reported:
                reported = True
                sentences.append((place, sentence(example, result, seconds, setup)))

            if example.kind is Kind.OUTPUT and not example.want:
                setup.append(example.source)

        start += len(group)

    return sentences


def sentence(example: Example, result: Result, seconds: float, setup: Sequence[str] = ()) -> str:
    """Return what is wrong; `setup` are the lines of the example before it."""
    lines: list[str] = []
    for source in (*setup, example.source):
        source = source.strip()  # noqa: PLW2901 - without the blanks around it
        lines.append(" ".join(source.split()) if "\n" in source else source)

    code = "; ".join(lines)
    if len(code) > LONGEST_VALUE:
        code = _short(lines[-1])

    if result.status is Status.ENDLESS:
        return f"{code} does not end within {seconds:g} s."

    verb = "raises" if result.status is Status.RAISED else "gives"
    if example.raises is not None:
        expected = f"raise {_short(example.raises)}"
    elif example.kind is Kind.RAISES:
        expected = f"raise {example.want}"
    else:
        expected = f"give {_short(example.want)}"

    return f"{code} {verb} {_short(result.text)}, but must {expected}."


def _short(text: str) -> str:
    line = " / ".join(line_text.rstrip() for line_text in text.strip().splitlines()) or "nothing"
    if len(line) <= LONGEST_VALUE:
        return line
    return line[:LONGEST_VALUE] + "..."


# --- Examples in the sentences of a request

LONGEST_REQUEST: Final = 20_000  # characters of a request that are read
LONGEST_CODE: Final = 500  # characters of one piece of code
_MOST_CALLS: Final = 200
_MOST_TRIED: Final = 20  # closing brackets or quotes that a piece of code may end with
_CALL: Final = re.compile(r"(?<![\w.])[^\W\d]\w*(?:\.[^\W\d]\w*)*(?=\()")
_CLOSER: Final = re.compile(r"[)\]}'\"]")
_GOES_ON: Final = re.compile(r"\.[^\W\d]\w*(?=\()|(?=\[)")
_PLAIN: Final = re.compile(
    r"(?P<number>[-+]?(?:\d[\d_]*(?:\.\d+)?|\.\d+)(?:[eE][-+]?\d+)?)(?!\w|\.\d)|(?P<word>true|false|none|null)\b"
    r"|(?:an?\s+|the\s+)?empty\s+(?P<empty>list|string|dict(?:ionary)?|tuple|set)\b",
    re.IGNORECASE,
)
_WORDS = {"null": "None", "list": "[]", "string": "''", "dict": "{}", "dictionary": "{}", "tuple": "()"}
_WORDS |= {"set": "set()", "true": "True", "false": "False", "none": "None"}
_EXCEPTION: Final = re.compile(r"(?:an?\s+)?([^\W\d]\w*(?:Error|Exception|Warning|Interrupt|Iteration|Exit))\b")
_PLACE: Final = re.compile(r"\s+(?:in|from|of)\s+[\w./-]+\.py\b")
_MUST: Final = (
    r"(?:should|must|shall|(?:has|have|needs|ought|is expected|is supposed)\s+to)\s+(?:now\s+|also\s+|always\s+)?"
    r"(?:return|give|be|equal|yield|produce|(?P<raise>raise))\b"
)
_MUST_BE: Final = re.compile(
    rf"\s*+,?\s*+(?:it\s+)?{_MUST}\s*:?\s*|\s*+[,:(]?\s*+(?:is\s+)?expected(?:\s+to\s+be|\s+is)?\s*:?\s*", re.IGNORECASE
)
_EQUAL: Final = re.compile(r"\s*(?:#\s*)?(?:[-=]{1,2}>|[\u2192\u21d2\u279e]|={1,3})\s*")
_TELLS: Final = re.compile(
    r"\s*+[,:(#]?\s*+(?:it\s+)?(?P<now>(?:currently|now|actually|wrongly|still)\s+)?(?:gives?|returns?|is|yields?"
    r"|produces?|(?P<got>got|i\s+get|we\s+get)|(?P<raise>raises?|crashes\s+with|fails\s+with))\b\s*:?\s*",
    re.IGNORECASE,
)
_CORRECTED: Final = re.compile(
    rf"[\s.,;:(\u2013\u2014-]*(?:(?:but|and|where|while)\b\s*)?(?:i\s+|we\s+|it\s+|that\s+|which\s+)?(?:{_MUST}"
    r"|(?:is\s+|was\s+)?(?:expect(?:ed)?|want(?:ed)?)(?:\s+it)?(?:\s+to\s+be|\s+is|\s+was)?"
    r"|(?P<instead>(?:instead\s+of|rather\s+than)(?:\s+(?:returning|giving|raising))?))\s*:?\s*",
    re.IGNORECASE,
)
_ENDS: Final = re.compile(
    r"\s*(?:$|[;)\]!?\n(\u2013\u2014]|,(?!\s*[-+]?[\d'\"\[{])|:(?!\d)|\.(?![\w.])|-(?=\s+[^\s\d])"
    r"|(?:but|and|not|instead|rather|when|where|because|since|as|while|got|which|however|although|though|so|expected"
    r"|should|must|fails?|holds?|does|is)\b)",
    re.IGNORECASE,
)
_NOT_REQUIRED: Final = re.compile(
    r"\b(?:currently|now|today|at\s+the\s+moment|actual(?:ly)?|got|wrong(?:ly)?|bug(?:gy)?|(?:i|we|you)\s+(?:get|see)"
    r"|why|(?:not|never)\b(?=[^:(;.\n]*\Z|\s+(?:be|right|correct|true|so|happen)\b))\b[^.;\n]*\Z"
    r"|\b(?:if|elif|while|unless|or|whether)\s+\Z|[\w)\]}'\"][ \t]*[-+*/%&|^<][ \t]*\Z|[-+~]\Z",
    re.IGNORECASE,
)
_IS_WRONG: Final = re.compile(
    r"\s*+,?\s*+(?:but|not|which)\b|\s*is\s+(?:(?!not\b)\w+\s+)?(?:wrong|incorrect|a\s+bug|not\s+(?:right|correct|expected)"
    r"|true\s+(?:at\s+the\s+moment|now|today))\b",
    re.IGNORECASE,
)
_SO_THAT: Final = re.compile(
    r"\b(?:so\s+that|such\s+that|make\s+sure(?:\s+that)?|ensure(?:\s+that)?)\s+\Z", re.IGNORECASE
)


class _Requirement(NamedTuple):
    kind: Kind
    want: str
    end: int


def task_examples(
    request: str, names: Collection[str], module: str = "", new: Collection[str] = ()
) -> tuple[Example, ...]:
    """Return the examples that call one of `names`, the functions and classes of `module`, perhaps with its name.

    A value of a `new` function is an expected one, as the function did not exist when the request was written.
    """
    text = request[:LONGEST_REQUEST].replace("`", " ")
    return tuple(dict.fromkeys(_called_examples(text, names, module, new)))


def _called_examples(text: str, names: Collection[str], module: str, new: Collection[str]) -> Iterator[Example]:
    end = 0

    for match in islice(_CALL.finditer(text), _MOST_CALLS):
        call = _code_at(text, match.start()) if match.start() >= end else ""
        code = _usable(call, names, module)
        name = _called(code, names)
        if not name:
            continue

        end = match.start() + len(call)
        place = _PLACE.match(text, end)
        if place is not None:
            end = place.end()

        request = read_request(text)
        creates = name in new or (request.creates and not request.repairs)
        requirement = _must_be(text, match.start(), end, names, creates=creates)
        if requirement is not None and _ENDS.match(text, requirement.end):
            yield Example(name, code, requirement.want, Origin.TASK, requirement.kind)


def _must_be(text: str, start: int, end: int, names: Collection[str], *, creates: bool) -> _Requirement | None:
    before = text[max(0, start - 120) : start]
    match = _MUST_BE.match(text, end)
    if match is not None:
        return _value_at(text, match.end(), names, raises=bool(match["raise"]))

    equal = _EQUAL.match(text, end)
    match = equal or _TELLS.match(text, end)
    if match is None:
        return None

    groups = match.groupdict()
    requirement = _value_at(text, match.end(), names, raises=bool(groups.get("raise")))
    if requirement is None:
        return None

    meant = creates or _SO_THAT.search(before) is not None
    corrected = _CORRECTED.match(text, requirement.end)
    if corrected and not (corrected["instead"] and meant):
        return _value_at(text, corrected.end(), names, raises=bool(corrected["raise"]))

    if groups.get("now") or groups.get("got"):
        return None
    if _NOT_REQUIRED.search(before) or _IS_WRONG.match(text, requirement.end):
        return None

    return requirement if equal or meant else None


def _value_at(text: str, start: int, names: Collection[str], *, raises: bool) -> _Requirement | None:
    start += len(text[start:]) - len(text[start:].lstrip(" \t"))

    if raises:
        error = _EXCEPTION.match(text, start)
        if error:
            return _Requirement(Kind.RAISES, error[1], error.end())
        return None

    if plain := _PLAIN.match(text, start):
        code = plain["number"] or _WORDS[(plain["word"] or plain["empty"]).lower()]
        return _Requirement(Kind.VALUE, code, plain.end())

    code = _code_at(text, start)
    if _is_plain(code, names):
        return _Requirement(Kind.VALUE, code, start + len(code))

    return None


def _code_at(text: str, start: int) -> str:
    """Return the shortest expression that begins here, with the calls and subscripts that follow it."""
    position = 0

    for closer in islice(_CLOSER.finditer(text, start + 1, start + LONGEST_CODE), _MOST_TRIED):
        if position and not _GOES_ON.match(text, position):
            break

        if _tree(text[start : closer.end()]) is not None:
            position = closer.end()

    return text[start:position]


def _usable(code: str, names: Collection[str], module: str) -> str:
    """Return the code without the module's name if it consists of literals and calls, else ""."""
    if module:
        code = re.sub(rf"(?<![\w.]){re.escape(module)}\.(?=[^\W\d])", "", code)

    return code if _is_plain(code, names) else ""


def _tree(code: str) -> ast.Expression | None:
    try:
        return ast.parse(code, mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _is_plain(code: str, names: Collection[str]) -> bool:
    """Return whether this is an expression of literals and of calls of known names and builtins."""
    tree = _tree(code) if 0 < len(code) <= LONGEST_CODE else None
    if tree is None:
        return False

    called = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}

    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id not in names:
            callable_name = hasattr(builtins, node.id) or node.id[:1].isupper()
            if id(node) not in called or not callable_name:
                return False

        if isinstance(node, ast.Lambda | ast.NamedExpr | ast.Await | ast.Yield | ast.YieldFrom | ast.JoinedStr):
            return False
        if isinstance(node, ast.Constant) and node.value is ...:
            return False

    return True


def _called(code: str, names: Collection[str]) -> str:
    """Return the first of the names that the code calls, or ""."""
    tree = _tree(code)
    if tree is None:
        return ""

    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in names:
            return node.func.id

    return ""
