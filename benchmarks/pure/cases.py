"""The hot pure functions, each with inputs that are large and built to be hard for it.

A case at scale 4 has the size that the function must stand: replies of 1 MB, texts of 200 kB, files of 10,000 lines. At
scale 1 it has a quarter of that.
"""

import re
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final, NamedTuple

from mendgraph.nodes.execute_tools.edits.definitions import replace_definitions
from mendgraph.nodes.execute_tools.edits.exact_edits import nearest_region, replace_text
from mendgraph.nodes.execute_tools.edits.patches import UpdatedFile, apply_hunks, parse_patch
from mendgraph.nodes.execute_tools.secrets.redact import Redactor
from mendgraph.nodes.execute_tools.secrets.text_parts import RedactedStream, masked_blocks
from mendgraph.nodes.language.formats.call_format import ToolSchemas
from mendgraph.nodes.language.formats.recognition import recognise
from mendgraph.nodes.language.text_protocol import extract_in_order
from mendgraph.nodes.loop_check.repetition import action_signature
from mendgraph.nodes.parse.native_calls import read_native_calls
from mendgraph.nodes.parse.written_calls import cut_invented
from mendgraph.nodes.records import RawCall
from mendgraph.nodes.small_model.answers import AnswerFacts, answer_error
from mendgraph.nodes.small_model.blocks import read_blocks
from mendgraph.nodes.small_model.wording import is_question
from tests.architecture.hostile_texts import ENDS, hostile_units
from tests.architecture.patterns import patterns

REPLY: Final = 250_000
"""Characters of a reply at scale 1."""
TEXT: Final = 50_000
"""Characters of a text to redact at scale 1."""
LINES: Final = 2_500
"""Lines of a file to edit at scale 1."""

TOOLS: Final = frozenset({"read_file", "write_file", "edit_file", "multi_edit", "edit_blocks", "final_answer"})
KNOWN: Final = Redactor(("x8K!qP2zzzRt", "correct-horse-9-battery"))


class Case(NamedTuple):
    """What is measured, by name, and what makes the call of it at a scale."""

    name: str
    made: Callable[[int], Callable[[], Any]]


def cases() -> tuple[Case, ...]:
    """All of them."""
    return (*_parser(), *_redaction(), *_edits(), *_signatures(), *_patterns())


def _of(size: int, unit: str, before: str = "", after: str = "") -> str:
    return before + unit * (size // len(unit)) + after


def _parser() -> Iterator[Case]:
    units = {
        "tool lines": ("tool:\n", ""),
        "calls": ('tool: read_file({"path": "a.py"})\n', ""),
        "calls with blocks": ('tool: write_file({"path": "a"})\n```\nx = 1\n```\n', ""),
        "unclosed braces": ('tool: read_file({"a": \n', ""),
        "nested brackets": ("[", 'tool: read_file({"path": '),
        "fences": ("```\n", ""),
        "file blocks": ("a.py\n```python\nx = 1\n```\n", ""),
        "quotes": ('"', 'tool: write_file({"path": "a", "content": '),
        "backslashes": ("\\", 'tool: write_file({"path": "a", "content": "'),
        "tags": ("<tool_call>\n", ""),
        "one line": ("word ", ""),
        "line separators": ("\u2028", ""),
        "emoji": ("\N{GRINNING FACE}", ""),
    }

    def reading(unit: str, before: str, scale: int) -> Callable[[], Any]:
        text = _of(REPLY * scale, unit, before)
        native = [RawCall(call_id="", tool="edit_file", arguments=text)]
        facts = AnswerFacts("mend it", first=True)
        return lambda: (
            extract_in_order(text, TOOLS),
            recognise(text, ToolSchemas(TOOLS)),
            read_blocks(text, ("a.py", "src/b.py"), "mend it"),
            cut_invented(text, TOOLS),
            read_native_calls(native, ToolSchemas(TOOLS)),
            is_question(text),
            answer_error(text, facts),
        )

    for name, (unit, before) in units.items():
        yield Case(f"parser: {name}", partial(reading, unit, before))


def _redaction() -> Iterator[Case]:
    units = {
        "code": "def total(items):\n    return sum(item.price for item in items)\n",
        "assignments": 'password = "x8K!qP2zzz"\n',
        "options": "--password aB3xyzpq ",
        "one token": "aB3",
        "base64 lines": "QWxhZGRpbjpvcGVuIHNlc2FtZQ0123456789abcdefXY+/AbCdEfGhIjKlMnOpQr\n",
        "prefixes": "ghp_ sk- eyJ AKIA xoxb- ",
        "web tokens": "eyJabcdefgh.",
        "logins in addresses": "http://user:hunter2xX@h ",
        "first lines of keys": "-----BEGIN PRIVATE KEY-----\n",
        "known values": "correct-horse-9-battery ",
        "command lines": "curl -u me:x8K1 ",
        "names and values in two fields": '"value": "a1B2c3D4", "name": "api_key", ',
        "hashes": "$6$a1B2$",
    }

    def streamed(text: str) -> str:
        stream = RedactedStream(KNOWN)
        return "".join(stream.feed(text[at : at + 20]) for at in range(0, len(text), 20)) + stream.close()

    for name, unit in units.items():

        def whole(scale: int, unit: str = unit) -> Callable[[], Any]:
            text = _of(TEXT * scale, unit)
            return lambda: (KNOWN.text(text), masked_blocks(text))

        yield Case(f"redaction: {name}", whole)
    yield Case("redaction: a document", _document)
    yield Case("redaction: a stream of chunks", lambda scale: lambda: streamed(_of(TEXT * scale, units["code"])))


def _document(scale: int) -> Callable[[], Any]:
    records = [
        {"path": f"src/{at}.py", "ok": True, "text": "total = 3", "token_count": at} for at in range(500 * scale)
    ]
    return lambda: KNOWN.value(records)


def _edits() -> Iterator[Case]:
    def edit(line: str, wanted: Callable[[int], str]) -> Callable[[int], Callable[[], Any]]:
        def made(scale: int) -> Callable[[], Any]:
            text, old = line * (LINES * scale), wanted(LINES * scale)
            return lambda: replace_text(text, "a.py", old, "y = 2\n", replace_all=False)

        return made

    same = "    x = 1\n"
    yield Case("edit: half of all lines, the last of them missing", edit(same, lambda n: same * (n // 2) + "    y\n"))
    yield Case("edit: half of all lines, blanks at the end", edit("ab\n", lambda n: "ab\n" * (n // 2) + "a "))
    yield Case("edit: half of all lines, indented otherwise", edit(same, lambda n: "x = 1\n" * (n // 2)))
    yield Case("edit: a part of one long line", edit("a" * 10, lambda n: "a" * (5 * n) + "b"))
    yield Case("edit: nearest lines", _nearest)
    yield Case(
        "patch: the same header everywhere", lambda scale: _patched("    x = 1\n)\n", "@@ )\n     x = 1\n-y\n", scale)
    )
    yield Case("patch: many headers", lambda scale: _patched(same, "@@     x = 1\n" * 500 * scale + "-y\n", scale))
    yield Case("patch: half of all lines", lambda scale: _patched(same, f"@@\n{f' {same}' * 1000 * scale}-y\n", scale))
    yield Case("blocks: a whole file", lambda scale: _merged(_module(scale), r"return c \* b", "return c"))
    yield Case("blocks: only new names", lambda scale: _merged(_module(scale), "def f", "def g"))
    yield Case("blocks: an example's values", _example)
    yield Case("blocks: attributes of many classes", _attributes)


def _nearest(scale: int) -> Callable[[], Any]:
    text = "".join(f"    value_{at} = compute(alpha, beta)\n" for at in range(LINES * scale))
    return lambda: nearest_region(text, "    value = compute(gamma, beta)\n" * 40)


def _patched(line: str, hunks: str, scale: int) -> Callable[[], Any]:
    text = line * (LINES * scale // line.count("\n"))

    def applied() -> Any:
        files = parse_patch(f"*** Begin Patch\n*** Update File: a.py\n{hunks}+z\n*** End Patch\n")
        return [apply_hunks(text, file.hunks, "a.py") for file in files if isinstance(file, UpdatedFile)]

    return applied


def _module(scale: int) -> str:
    count = LINES * scale // 4
    return "".join(f"def f{at}(a, b):\n    c = a + {at}\n    return c * b\n\n" for at in range(count))


def _merged(source: str, pattern: str, by: str) -> Callable[[], Any]:
    block = re.sub(pattern, by, source)
    return lambda: replace_definitions(source, block)


def _example(scale: int) -> Callable[[], Any]:
    count = LINES * scale // 2
    source = "x = 1\n" + "".join(f"a{at} = {at}\n" for at in range(count))
    block = "".join(f"b{at} = {at}\n" for at in range(count)) + "print(b1)\n"
    return lambda: replace_definitions(source, block)


def _attributes(scale: int) -> Callable[[], Any]:
    count = LINES * scale // 4
    source = "".join(f"class A{at}:\n    x{at} = 1\n    def f(self):\n        return 2\n" for at in range(count))
    return lambda: replace_definitions(source, "".join(f"x{at} = 2\n" for at in range(count)))


def _patterns() -> Iterator[Case]:
    """All regular expressions of ours on what is hard for each of them, package by package."""
    hard = [(each, hostile_units(each.pattern, each.flags, 4)) for each in patterns()]

    def searching(package: str, scale: int) -> Callable[[], Any]:
        size, here = 400 * scale, [each for each in hard if each[0].name.startswith(package)]
        ready = [(re.compile(found.pattern, found.flags), found.anchored, units) for found, units in here]
        return lambda: [
            pattern.match(text) if anchored else pattern.sub("", text)
            for pattern, anchored, units in ready
            for text in (f"{_of(size, unit)}{end}" for unit in units[:8] for end in ENDS)
        ]

    for package in (
        "mendgraph.graph.",
        "mendgraph.nodes.language.",
        "mendgraph.nodes.execute_tools.",
        "mendgraph.nodes.call_model.",
    ):
        yield Case(f"patterns: {package}", partial(searching, package))


def _signatures() -> Iterator[Case]:
    def signed(make: Callable[[int], dict[str, Any]]) -> Callable[[int], Callable[[], Any]]:
        def made(scale: int) -> Callable[[], Any]:
            arguments = make(REPLY * scale)
            return lambda: action_signature("write", "write_file", arguments, "a.py")

        return made

    yield Case("signature: one long text", signed(lambda size: {"content": "\N{GRINNING FACE}\n" * (size // 2)}))
    yield Case("signature: many keys", signed(lambda size: {f"key{at}": at for at in range(size // 20)}))
    yield Case(
        "signature: many edits", signed(lambda size: {"edits": [{"old_str": "a", "new_str": "b"}] * (size // 32)})
    )
