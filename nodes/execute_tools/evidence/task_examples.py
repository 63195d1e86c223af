"""The examples that a request gives in its words, such as `median([1, 2]) should return 1.5`. Pure.

What is read is a table of usual forms, strictly: a value that may be the wrong one, as in "f(1) returns 2", counts only
where the request asks for something new. A parser has the last word on what is code.
"""

import ast
import builtins
import re
from collections.abc import Collection, Iterator
from itertools import islice
from typing import Final, NamedTuple

from mendgraph.nodes.execute_tools.edits.request import read_request
from mendgraph.nodes.execute_tools.evidence.examples import Example, Kind, Origin

LONGEST_REQUEST: Final = 20_000
"""Characters of a request that are read."""
LONGEST_CODE: Final = 500
"""Characters of one piece of code."""
_MOST_CALLS: Final = 200
_MOST_TRIED: Final = 20
"""Closing brackets or quotes that a piece of code may end with."""

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
_WANTED: Final = re.compile(
    rf"\s*+,?\s*+(?:it\s+)?{_MUST}\s*:?\s*|\s*+[,:(]?\s*+(?:is\s+)?expected(?:\s+to\s+be|\s+is)?\s*:?\s*", re.IGNORECASE
)
_EQUAL: Final = re.compile(r"\s*(?:===?|->|=>|\u2192|=)\s*")
_TELLS: Final = re.compile(
    r"\s*+[,:(]?\s*+(?:it\s+)?(?P<now>(?:currently|now|actually|wrongly|still)\s+)?(?:gives?|returns?|is|yields?|produces?"
    r"|(?P<got>got|i\s+get|we\s+get)|(?P<raise>raises?|crashes\s+with|fails\s+with))\b\s*:?\s*",
    re.IGNORECASE,
)
_CORRECTED: Final = re.compile(
    rf"[\s.,;:(\u2013\u2014-]*(?:(?:but|and|where|while)\b\s*)?(?:i\s+|we\s+|it\s+|that\s+|which\s+)?(?:{_MUST}"
    r"|(?:is\s+|was\s+)?(?:expect(?:ed)?|want(?:ed)?)(?:\s+it)?(?:\s+to\s+be|\s+is|\s+was)?"
    r"|(?P<instead>(?:instead\s+of|rather\s+than)(?:\s+(?:returning|giving|raising))?))\s*:?\s*",
    re.IGNORECASE,
)
_ENDS: Final = re.compile(
    r"\s*(?:$|[,;:)\]!?\n(\u2013\u2014]|\.(?!\d|\w)|-(?=\s)|(?:but|and|not|instead|rather|when|where|because|since|as|while"
    r"|got|which|however|although|though|so|expected|should|must|fails?|holds?|does|is)\b)",
    re.IGNORECASE,
)
_NOT_WANTED: Final = re.compile(
    r"\b(?:currently|now|today|at\s+the\s+moment|actual(?:ly)?|got|wrong(?:ly)?|bug(?:gy)?|(?:i|we|you)\s+(?:get|see)"
    r"|why|(?:not|never)\b(?=[^:(;.\n]*\Z|\s+(?:be|right|correct|true|so|happen)\b))\b[^.;\n]*\Z",
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
_EXPECT: Final = re.compile(r"\bexpect(?:ed|s)?\s+\Z", re.IGNORECASE)
_TO_BE: Final = re.compile(r"\s*to\s+(?:return|give|be|(?P<raise>raise))\b\s*", re.IGNORECASE)
_ASSERT: Final = re.compile(r"\bassert[ \t]+([^\n]+)")


class _Told(NamedTuple):
    """What a call comes to by the request, and where that ends."""

    kind: Kind
    want: str
    end: int


def task_examples(
    request: str, names: Collection[str], module: str = "", new: Collection[str] = ()
) -> tuple[Example, ...]:
    """The examples that call one of `names`, the functions and classes of `module`, which may stand before them.

    Of those that are `new` nothing can be told but what is wanted, as they did not exist when the request was written.
    """
    text = request[:LONGEST_REQUEST].replace("`", " ")
    asserted, plain = _ASSERT.findall(text), _ASSERT.sub(lambda match: " " * len(match[0]), text)
    found = (*_asserted(asserted, names, module), *_called_examples(plain, names, module, new))
    return tuple(dict.fromkeys(found))


def _asserted(lines: list[str], names: Collection[str], module: str) -> Iterator[Example]:
    for line in lines:
        code = _usable(line.strip().rstrip(".").strip(), names, module)
        name = _called(code, names)
        if name:
            match ast.parse(code, mode="eval").body:
                case ast.Compare(left=left, ops=[ast.Eq()], comparators=[right]):
                    yield Example(name, ast.unparse(left), ast.unparse(right), Origin.TASK, Kind.VALUE)
                case _:
                    yield Example(name, f"bool({code})", "True", Origin.TASK, Kind.VALUE)


def _called_examples(text: str, names: Collection[str], module: str, new: Collection[str]) -> Iterator[Example]:
    asked, end = read_request(text), 0
    for match in islice(_CALL.finditer(text), _MOST_CALLS):
        call = _code_at(text, match.start()) if match.start() >= end else ""
        code = _usable(call, names, module)
        name = _called(code, names)
        if name:
            end = match.start() + len(call)
            place = _PLACE.match(text, end)
            end = place.end() if place else end
            creates = name in new or (asked.creates and not asked.repairs)
            told = _wanted(text, match.start(), end, names, creates=creates)
            if told is not None and _ENDS.match(text, told.end):
                yield Example(name, code, told.want, Origin.TASK, told.kind)


def _wanted(text: str, start: int, end: int, names: Collection[str], *, creates: bool) -> _Told | None:
    """What the call between these places must come to."""
    before = text[max(0, start - 120) : start]
    match = (_EXPECT.search(before) and _TO_BE.match(text, end)) or _WANTED.match(text, end)
    if match:
        return _value_at(text, match.end(), names, raises=bool(match.groupdict().get("raise")))
    equal = _EQUAL.match(text, end)
    match = equal or _TELLS.match(text, end)
    if match is None:
        return None
    groups = match.groupdict()
    told = _value_at(text, match.end(), names, raises=bool(groups.get("raise")))
    if told is None:
        return None
    meant = _SO_THAT.search(before) is not None or creates
    corrected = _CORRECTED.match(text, told.end)
    if corrected and not (corrected["instead"] and meant):
        return _value_at(text, corrected.end(), names, raises=bool(corrected["raise"]))
    wrong = _NOT_WANTED.search(before) or groups.get("now") or groups.get("got") or _IS_WRONG.match(text, told.end)
    return told if (equal or meant) and not wrong else None


def _value_at(text: str, start: int, names: Collection[str], *, raises: bool) -> _Told | None:
    start += len(text[start:]) - len(text[start:].lstrip(" \t"))
    if raises:
        error = _EXCEPTION.match(text, start)
        return _Told(Kind.RAISES, error[1], error.end()) if error else None
    plain = _PLAIN.match(text, start)
    if plain:
        code = plain["number"] or _WORDS[(plain["word"] or plain["empty"]).lower()]
        return _Told(Kind.VALUE, code, plain.end())
    code = _code_at(text, start)
    return _Told(Kind.VALUE, code, start + len(code)) if _is_plain(code, names) else None


def _code_at(text: str, start: int) -> str:
    """The expression that begins here and ends with the first possible bracket or quote, with what is called of it."""
    found = 0
    for closer in islice(_CLOSER.finditer(text, start + 1, start + LONGEST_CODE), _MOST_TRIED):
        if found and not _GOES_ON.match(text, found):
            break
        if _tree(text[start : closer.end()]) is not None:
            found = closer.end()
    return text[start:found]


def _usable(code: str, names: Collection[str], module: str) -> str:
    """The code without the module's name, if it is made of literals and calls; else ""."""
    if module:
        code = re.sub(rf"(?<![\w.]){re.escape(module)}\.(?=[^\W\d])", "", code)
    return code if _is_plain(code, names) else ""


def _tree(code: str) -> ast.Expression | None:
    try:
        return ast.parse(code, mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _is_plain(code: str, names: Collection[str]) -> bool:
    """Whether it is an expression of literals, and of calls of known names and of builtins."""
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
    """The first of the names that the code, which is plain or "", calls, or ""."""
    tree = _tree(code)
    calls = (node.func for node in ast.walk(tree) if isinstance(node, ast.Call)) if tree else ()
    return next((func.id for func in calls if isinstance(func, ast.Name) and func.id in names), "")
