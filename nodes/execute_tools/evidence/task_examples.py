"""Where a piece of Python begins and ends inside of prose: a call, a literal. Pure.

Brackets and strings are followed, nothing else is understood; a parser has the last word.
"""

import ast
import builtins
import re
from collections.abc import Collection, Iterator
from typing import Final, NamedTuple

from mendgraph.nodes.execute_tools.edits.request import read_request
from mendgraph.nodes.execute_tools.evidence.examples import Example, Kind, Origin

LONGEST_CODE: Final = 500
"""Characters of one piece."""

_NUMBER = re.compile(r"[-+]?(?:\d[\d_]*(?:\.\d+)?|\.\d+)(?:[eE][-+]?\d+)?")
_WORD = re.compile(r"(?:[rbuRBU]{0,2})(?=['\"])|[^\W\d]\w*(?:\.[^\W\d]\w*)*")
_PLAIN = {"true": "True", "false": "False", "none": "None", "null": "None"}
_CLOSERS = {"(": ")", "[": "]", "{": "}"}

_AFTER_A_CALL = re.compile(r"\.[^\W\d]\w*(?=[(.])|\.[^\W\d]\w*\b(?=\s)")
_GLUED = re.compile(r"\w|\.\d")


class Span(NamedTuple):
    """Code in a text: itself, and where it ends."""

    code: str
    end: int


def call_span(text: str, start: int, end: int) -> Span | None:
    """A call that begins with a name, and what is called, taken or looked up of its result."""
    while end < len(text) and text[end] in "([":
        closed = _balanced(text, end)
        if closed is None:
            return None
        end = closed
        more = _AFTER_A_CALL.match(text, end)
        end = more.end() if more else end
    return Span(text[start:end], end)


def value_span(text: str, start: int) -> Span | None:
    """A number, a string, something in brackets, or a name with what is called."""
    if start >= len(text):
        return None
    if text[start] in _CLOSERS:
        end = _balanced(text, start)
        return None if end is None else Span(text[start:end], end)
    number = _NUMBER.match(text, start)
    if number:
        return None if _GLUED.match(text, number.end()) else Span(number[0], number.end())
    word = _WORD.match(text, start)
    if word is None:
        return None
    if text[word.end() : word.end() + 1] in {"'", '"'}:
        end = _string_end(text, word.end())
        return None if end is None else Span(text[start:end], end)
    if text[word.end() : word.end() + 1] == "(":
        return call_span(text, start, word.end())
    code = _PLAIN.get(word[0].lower(), "")
    return Span(code, word.end()) if code else None


def _balanced(text: str, start: int) -> int | None:
    """Where the bracket that opens at `start` is closed; strings inside are passed over."""
    waiting: list[str] = []
    at = start
    while at < min(len(text), start + LONGEST_CODE):
        letter = text[at]
        if letter in _CLOSERS:
            waiting.append(_CLOSERS[letter])
        elif letter in "'\"":
            end = _string_end(text, at)
            if end is None:
                return None
            at = end
            continue
        elif letter in ")]}":
            if not waiting or waiting.pop() != letter:
                return None
            if not waiting:
                return at + 1
        at += 1
    return None


def _string_end(text: str, start: int) -> int | None:
    mark, at = text[start], start + 1
    while at < min(len(text), start + LONGEST_CODE):
        if text[at] == "\\":
            at += 2
            continue
        if text[at] == "\n":
            return None
        if text[at] == mark:
            return at + 1
        at += 1
    return None


LONGEST_REQUEST: Final = 20_000
"""Characters of a request that are read."""

_CALL = re.compile(r"(?<![\w.])[^\W\d]\w*(?:\.[^\W\d]\w*)*(?=\()")
_EMPTY = re.compile(r"(?:an?\s+|the\s+)?empty\s+(list|string|dict(?:ionary)?|tuple|set)\b", re.IGNORECASE)
_EMPTIES = {"list": "[]", "string": "''", "dict": "{}", "dictionary": "{}", "tuple": "()", "set": "set()"}
_VERB = (
    r"(?:return|give|be|equal|yield|produce|evaluate\s+to|result\s+in|come\s+out\s+as|become|have\s+been"
    r"|have\s+returned)"
)
_MUST = (
    r"(?:should|must|shall|has\s+to|have\s+to|needs\s+to|ought\s+to|is\s+supposed\s+to|was\s+supposed\s+to"
    r"|is\s+expected\s+to)"
)
_WANTED = re.compile(
    rf"\s*+,?\s*+(?:it\s+)?{_MUST}\s+(?:now\s+|also\s+|always\s+|still\s+)?(?:{_VERB}\b|(raise)\b)\s*:?\s*",
    re.IGNORECASE,
)
_PLACE = re.compile(r"\s+(?:in|from|of)\s+[\w./-]+\.py\b")
_WANTED_TO = re.compile(rf"\s*(?:to\s+)?(?:{_VERB}\b|(raise)\b)\s*", re.IGNORECASE)
_EXPECTED = re.compile(
    r"\s*+[,:(\[]?\s*+(?:is\s+)?(?:expected|wanted|want|correct)\s*(?:to\s+be|is)?\s*:?\s*", re.IGNORECASE
)
_EQUAL = re.compile(r"\s*(?:===?|->|=>|\u2192|=)\s*")
_TELLS = re.compile(
    r"\s*+[,:(]?\s*+(?:it\s+)?(?:currently\s+|now\s+|always\s+|actually\s+|wrongly\s+|incorrectly\s+|still\s+)?"
    r"(?:gives?(?:\s+back|\s+me)?|returns?|is|yields?|produces?|evaluates\s+to|equals|results\s+in|got|i\s+get|we\s+get"
    r"|you\s+get|gets|actual(?:ly)?|comes\s+out\s+as"
    r"|(raises?|throws|crashes\s+with|fails\s+with|dies\s+with|raised)(?:\s+an?)?)\b\s*:?\s*",
    re.IGNORECASE,
)
_COLON = re.compile(r"\s*:\s*")
_CORRECTED = re.compile(
    rf"[\s.,;:(\[\u2013\u2014-]*(?:(?:but|and|where|while|when|although|though|whereas|however)\b[\s,]*)?"
    rf"(?:i\s+|we\s+)?(?:(?:it|that|this|the\s+(?:right|correct|expected)?\s*(?:answer|value|result)|which)\s+)?"
    rf"(?:{_MUST}\s+(?:{_VERB}\b|(?P<raise>raise)\b)|(?:is\s+|was\s+)?(?:expect(?:ed)?|want(?:ed)?)(?:\s+it)?"
    rf"(?:\s+(?:to\s+be|to\s+{_VERB}|is|was))?|(?:is\s+)?(?P<instead>instead\s+of|rather\s+than)"
    rf"(?:\s+(?:returning|giving|raising|yielding))?)\s*:?\s*",
    re.IGNORECASE,
)
_ENDS = re.compile(
    r"\s*(?:$|[,;:)\]!?\n(\u2013\u2014]|\.(?!\d|\w)|-(?=\s)|(?:but|and|not|instead|rather|when|where|because|since|as"
    r"|while|whereas|got|which|however|although|though|yet|so|expected|should|must|fails?|holds?|does|was|is)\b)",
    re.IGNORECASE,
)
_NOW = re.compile(
    r"\b(?:currently|now|today|at\s+the\s+moment|actual(?:ly)?|got|gets|wrong(?:ly)?|bug(?:gy)?|before|observed|at\s+present"
    r"|(?:i|we|you)\s+(?:get|see)|shows?|says)\b[^.;\n]{0,400}$",
    re.IGNORECASE,
)
_STILL = re.compile(r"\b(?:currently|now|today|at\s+the\s+moment|at\s+present)\b[^.;\n]{0,400}$", re.IGNORECASE)
_DENIED = re.compile(r".*\b(?:not|never|why)\b([^.;\n]{0,400})$", re.IGNORECASE | re.DOTALL)
_CLAUSE_END = re.compile(r"[:(]\s*$")
_OF_WHAT_COMES = re.compile(
    r"\s*(?:(?:be|is|like|this|that|so|as|the|case|right|correct|true|ok|okay|wanted|expected|happen|hold|allowed|here)\b\s*)*"
    r"[:(]\s*$",
    re.IGNORECASE,
)
_IS_WRONG = re.compile(
    r"\s*(?:is|was|would\s+be)\s+(?:(?:clearly|simply|obviously|plainly|just|still|currently|actually)\s+)*"
    r"(?:wrong|incorrect|unexpected|(?:an?|the)\s+(?:bug|mistake|error|problem)"
    r"|not\s+(?:right|correct|ok(?:ay)?|wanted|expected|intended)"
    r"|true\b[^.;\n]*\b(?:but|although|though|currently|now|today|at\s+the\s+moment))\b",
    re.IGNORECASE,
)
_MOVES = re.compile(
    r"\b(?:mov(?:e|es|ing)|renam(?:e|ed|ing)|split(?:ting)?|extract(?:ing)?|cop(?:y|ying)|porting)\b", re.IGNORECASE
)
_NOT_FOR_GOOD = re.compile(r"currently|now|actual|wrong|incorrect|got|get|still", re.IGNORECASE)
_BUT = re.compile(r"\s*+,?\s*+(?:but|not|which)\b", re.IGNORECASE)
_ARTICLE = re.compile(r"(?:an?|the)\s+(?=[^\W\d]\w*(?:Error|Exception)\b)")
_SO_THAT = re.compile(
    r"\b(?:so\s+that|such\s+that|make\s+sure(?:\s+that)?|ensure(?:\s+that)?|until|to\s+make)\s+$", re.IGNORECASE
)
_EXPECT = re.compile(r"\b(?:expect(?:ed|s)?|want(?:ed|s)?|needs?|make|let)\s+$", re.IGNORECASE)
_ASSERT = re.compile(r"\bassert[ \t]+([^\n]+)")
_EXCEPTION = re.compile(r"[^\W\d]\w*(?:Error|Exception|Warning|Interrupt|Iteration|Exit)\b")


def task_examples(
    request: str, names: Collection[str], module: str = "", new: Collection[str] = ()
) -> tuple[Example, ...]:
    """The examples that call one of `names`, the functions and classes of `module`, which may stand before them.

    Of those that are `new` nothing can be told but what is wanted, as they did not exist when the request was written.
    """
    text = request[:LONGEST_REQUEST].replace("``", " ").replace("`", " ")
    reader = _Reader(text, frozenset(names), module, frozenset(new))
    return tuple(dict.fromkeys(reader.examples()))


class _Reader:
    def __init__(self, text: str, names: frozenset[str], module: str, new: frozenset[str]) -> None:
        self.text, self.names, self.module = text, names, module
        asked = read_request(text)
        self.specifies = asked.creates and not asked.repairs
        self.new = frozenset() if _MOVES.search(text) else new

    def examples(self) -> Iterator[Example]:
        end = 0
        for match in _ASSERT.finditer(self.text):
            yield from self._asserted(match[1])
        plain = _ASSERT.sub(lambda match: " " * len(match[0]), self.text)
        self.text = plain
        for match in _CALL.finditer(plain):
            if match.start() < end:
                continue
            call = call_span(plain, match.start(), match.end())
            if call is None or (source := self._usable(call.code)) is None:
                continue
            place = _PLACE.match(plain, call.end)
            end = place.end() if place else call.end
            name = _called(source, self.names)
            found = self._wanted(match.start(), end, new=name in self.new)
            if found is not None:
                kind, want = found
                yield Example(name, source, want, Origin.TASK, kind)

    def _asserted(self, line: str) -> Iterator[Example]:
        code = line.strip().rstrip(".").strip()
        source = self._usable(code)
        if source is None:
            return
        name = _called(source, self.names)
        match ast.parse(source, mode="eval").body:
            case ast.Compare(left=left, ops=[ast.Eq()], comparators=[right]):
                yield Example(name, ast.unparse(left), ast.unparse(right), Origin.TASK, Kind.VALUE)
            case _:
                yield Example(name, source, "", Origin.TASK, Kind.HOLDS)

    def _wanted(self, start: int, end: int, *, new: bool) -> tuple[Kind, str] | None:
        """What the call that ends here must come to; `new`: of what did not exist before."""
        before = self.text[max(0, start - 120) : start]
        if match := _WANTED.match(self.text, end):
            return self._result(match.end(), raises=match[1] is not None)
        if _EXPECT.search(before) and (match := _WANTED_TO.match(self.text, end)):
            return self._result(match.end(), raises=match[1] is not None)
        if match := _EXPECTED.match(self.text, end):
            return self._result(match.end(), raises=False)
        match = _EQUAL.match(self.text, end)
        if match:
            return self._told(match.end(), before, claims=True, raises=False, new=new)
        match = _TELLS.match(self.text, end)
        if match:
            return self._told(match.end(), before, claims=False, raises=match[1] is not None, said=match[0], new=new)
        match = _COLON.match(self.text, end)
        return self._told(match.end(), before, claims=False, raises=False, said="now", new=new) if match else None

    def _told(
        self, end: int, before: str, *, claims: bool, raises: bool, new: bool, said: str = ""
    ) -> tuple[Kind, str] | None:
        """The wanted one where a value is told that may be the wrong one; `claims`: written like an equation."""
        told = self._read(end, raises=raises)
        if told is None:
            return None
        kind, want, after = told
        meant = _SO_THAT.search(before) is not None
        specifies = self.specifies or new
        now = (_STILL if new else _NOW).search(before) or _is_denied(before) or _NOT_FOR_GOOD.search(said)
        corrected = _CORRECTED.match(self.text, after)
        if corrected and not (corrected["instead"] and (meant or specifies)):
            return self._result(corrected.end(), raises=corrected["raise"] is not None)
        if now or not (claims or meant or specifies) or not _ENDS.match(self.text, after):
            return None
        return None if _BUT.match(self.text, after) or _IS_WRONG.match(self.text, after) else (kind, want)

    def _result(self, start: int, *, raises: bool) -> tuple[Kind, str] | None:
        read = self._read(start, raises=raises)
        if read is None or not _ENDS.match(self.text, read[2]):
            return None
        return read[:2]

    def _read(self, start: int, *, raises: bool) -> tuple[Kind, str, int] | None:
        start += len(self.text[start:]) - len(self.text[start:].lstrip(" \t"))
        article = _ARTICLE.match(self.text, start)
        if raises:
            match = _EXCEPTION.match(self.text, article.end() if article else start)
            return (Kind.RAISES, match[0], match.end()) if match else None
        if empty := _EMPTY.match(self.text, start):
            return Kind.VALUE, _EMPTIES[empty[1].lower()], empty.end()
        value = value_span(self.text, start)
        if value is None or not _is_plain(value.code, self.names):
            return None
        return Kind.VALUE, value.code, value.end

    def _usable(self, code: str) -> str | None:
        """The code, if it is made of literals and calls, and calls one of the names."""
        code = code.strip()
        if self.module:
            code = re.sub(rf"(?<![\w.]){re.escape(self.module)}\.(?=[^\W\d])", "", code)
        return code if _is_plain(code, self.names) and _called(code, self.names) else None


def _is_denied(before: str) -> bool:
    """Whether a "not" in the words before an example is about it.

    One whose clause is over is about something else, as in `Case does not matter: f("A") == 1`.
    """
    denied = _DENIED.match(before)
    if denied is None:
        return False
    return _CLAUSE_END.search(denied[1]) is None or _OF_WHAT_COMES.match(denied[1]) is not None


def _is_plain(code: str, names: frozenset[str]) -> bool:
    """Whether it is an expression of literals, and of calls of known names and of builtins."""
    if not code or len(code) > LONGEST_CODE:
        return False
    try:
        tree = ast.parse(code, mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    called = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and not (
            node.id in names or (id(node) in called and (hasattr(builtins, node.id) or node.id[:1].isupper()))
        ):
            return False
        if isinstance(node, ast.Constant) and node.value is ...:
            return False
        if isinstance(node, ast.Lambda | ast.NamedExpr | ast.Await | ast.Yield | ast.YieldFrom | ast.JoinedStr):
            return False
    return True


def _called(code: str, names: Collection[str]) -> str:
    """The first of the names that the code, which is plain, calls, or ""."""
    calls = (node.func for node in ast.walk(ast.parse(code, mode="eval")) if isinstance(node, ast.Call))
    return next((func.id for func in calls if isinstance(func, ast.Name) and func.id in names), "")
