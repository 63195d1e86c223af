"""The hot pure functions with large and difficult inputs.

A case at scale 4 has the maximum size: replies of 1 MB, texts of 200 kB, files of 10,000 lines. At scale 1 it has a
quarter of that.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
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
"""The number of characters of a reply at scale 1."""
TEXT: Final = 50_000
"""The number of characters of a text to redact at scale 1."""
LINES: Final = 2_500
"""The number of lines of a file to edit at scale 1."""

TOOLS: Final = frozenset({"read_file", "write_file", "edit_file", "multi_edit", "edit_blocks", "final_answer"})
REDACTOR: Final = Redactor(("x8K!qP2zzzRt", "correct-horse-9-battery"))

Call = Callable[[], Any]
"""A call to measure."""


class Case(NamedTuple):
    """A case. `prepare` returns the call at a scale."""

    name: str
    prepare: Callable[[int], Call]


def cases() -> tuple[Case, ...]:
    """Return all cases."""
    return (*_parser(), *_redaction(), *_edits(), *_signatures(), *_patterns())


def _repeat(size: int, unit: str, before: str = "") -> str:
    """Return a text of about this size."""
    return before + unit * (size // len(unit))


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

    def prepare(unit: str, before: str, scale: int) -> Call:
        text = _repeat(REPLY * scale, unit, before)
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
        yield Case(f"parser: {name}", partial(prepare, unit, before))


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

    for name, unit in units.items():
        yield Case(f"redaction: {name}", partial(_prepare_redaction, unit))
    yield Case("redaction: a document", _prepare_document)
    yield Case("redaction: a stream of chunks", partial(_prepare_stream, units["code"]))


def _prepare_redaction(unit: str, scale: int) -> Call:
    text = _repeat(TEXT * scale, unit)
    return lambda: (REDACTOR.text(text), masked_blocks(text))


def _prepare_document(scale: int) -> Call:
    records = [
        {"path": f"src/{number}.py", "ok": True, "text": "total = 3", "token_count": number}
        for number in range(500 * scale)
    ]
    return lambda: REDACTOR.value(records)


def _prepare_stream(unit: str, scale: int) -> Call:
    text = _repeat(TEXT * scale, unit)
    chunks = [text[start : start + 20] for start in range(0, len(text), 20)]

    def redact() -> str:
        stream = RedactedStream(REDACTOR)
        return "".join(map(stream.feed, chunks)) + stream.close()

    return redact


def _edits() -> Iterator[Case]:
    line = "    x = 1\n"
    edits: dict[str, tuple[str, Callable[[int], str]]] = {
        "half of all lines, the last of them missing": (line, lambda n: line * (n // 2) + "    y\n"),
        "half of all lines, blanks at the end": ("ab\n", lambda n: "ab\n" * (n // 2) + "a "),
        "half of all lines, indented otherwise": (line, lambda n: "x = 1\n" * (n // 2)),
        "a part of one long line": ("a" * 10, lambda n: "a" * (5 * n) + "b"),
    }
    for name, (unit, old_text) in edits.items():
        yield Case(f"edit: {name}", partial(_prepare_edit, unit, old_text))
    yield Case("edit: nearest lines", _prepare_nearest)

    patches: dict[str, tuple[str, Callable[[int], str]]] = {
        "the same header everywhere": ("    x = 1\n)\n", lambda _: "@@ )\n     x = 1\n-y\n"),
        "many headers": (line, lambda scale: "@@     x = 1\n" * 500 * scale + "-y\n"),
        "half of all lines": (line, lambda scale: f"@@\n{f' {line}' * 1000 * scale}-y\n"),
    }
    for name, (unit, hunks) in patches.items():
        yield Case(f"patch: {name}", partial(_prepare_patch, unit, hunks))

    yield Case("blocks: a whole file", partial(_prepare_block, r"return c \* b", "return c"))
    yield Case("blocks: only new names", partial(_prepare_block, "def f", "def g"))
    yield Case("blocks: an example's values", _prepare_example)
    yield Case("blocks: attributes of many classes", _prepare_attributes)


def _prepare_edit(line: str, old_text: Callable[[int], str], scale: int) -> Call:
    text = line * (LINES * scale)
    old = old_text(LINES * scale)
    return lambda: replace_text(text, "a.py", old, "y = 2\n", replace_all=False)


def _prepare_nearest(scale: int) -> Call:
    text = "".join(f"    value_{number} = compute(alpha, beta)\n" for number in range(LINES * scale))
    return lambda: nearest_region(text, "    value = compute(gamma, beta)\n" * 40)


def _prepare_patch(lines: str, hunks: Callable[[int], str], scale: int) -> Call:
    text = lines * (LINES * scale // lines.count("\n"))
    patch = f"*** Begin Patch\n*** Update File: a.py\n{hunks(scale)}+z\n*** End Patch\n"

    def apply() -> Any:
        files = parse_patch(patch)
        return [apply_hunks(text, file.hunks, "a.py") for file in files if isinstance(file, UpdatedFile)]

    return apply


def _prepare_block(pattern: str, replacement: str, scale: int) -> Call:
    functions = [
        f"def f{number}(a, b):\n    c = a + {number}\n    return c * b\n\n" for number in range(LINES * scale // 4)
    ]
    source = "".join(functions)
    block = re.sub(pattern, replacement, source)
    return lambda: replace_definitions(source, block)


def _prepare_example(scale: int) -> Call:
    numbers = range(LINES * scale // 2)
    source = "x = 1\n" + "".join(f"a{number} = {number}\n" for number in numbers)
    block = "".join(f"b{number} = {number}\n" for number in numbers) + "print(b1)\n"
    return lambda: replace_definitions(source, block)


def _prepare_attributes(scale: int) -> Call:
    numbers = range(LINES * scale // 4)
    classes = [f"class A{number}:\n    x{number} = 1\n    def f(self):\n        return 2\n" for number in numbers]
    source = "".join(classes)
    block = "".join(f"x{number} = 2\n" for number in numbers)
    return lambda: replace_definitions(source, block)


def _signatures() -> Iterator[Case]:
    arguments: dict[str, Callable[[int], dict[str, Any]]] = {
        "one long text": lambda size: {"content": "\N{GRINNING FACE}\n" * (size // 2)},
        "many keys": lambda size: {f"key{number}": number for number in range(size // 20)},
        "many edits": lambda size: {"edits": [{"old_str": "a", "new_str": "b"}] * (size // 32)},
    }
    for name, make_arguments in arguments.items():
        yield Case(f"signature: {name}", partial(_prepare_signature, make_arguments))


def _prepare_signature(make_arguments: Callable[[int], dict[str, Any]], scale: int) -> Call:
    arguments = make_arguments(REPLY * scale)
    return lambda: action_signature("write", "write_file", arguments, "a.py")


def _patterns() -> Iterator[Case]:
    """Yield a case for the regular expressions of each package, with texts that are hard for each expression."""
    packages = (
        "mendgraph.graph.",
        "mendgraph.nodes.language.",
        "mendgraph.nodes.execute_tools.",
        "mendgraph.nodes.call_model.",
    )
    units_of = {pattern: hostile_units(pattern.pattern, pattern.flags, 4) for pattern in patterns()}
    for package in packages:
        members = {pattern: units for pattern, units in units_of.items() if pattern.name.startswith(package)}
        yield Case(f"patterns: {package}", partial(_prepare_patterns, members))


def _prepare_patterns(units_of: Mapping[Any, Sequence[str]], scale: int) -> Call:
    size = 400 * scale
    expressions = [(re.compile(pattern.pattern, pattern.flags), pattern, units) for pattern, units in units_of.items()]

    def search() -> None:
        for expression, pattern, units in expressions:
            for unit in units[:8]:
                for end in ENDS:
                    text = f"{_repeat(size, unit)}{end}"
                    if pattern.anchored:
                        expression.match(text)
                    else:
                        expression.sub("", text)

    return search
