"""Nothing secret in what is shown or stored: one policy for all that leaves. Pure, and it fails closed.

What is known by value goes first, then what has a secret's shape, then what stands under a secret's name.
"""

import base64
import html
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, is_dataclass
from functools import lru_cache
from itertools import accumulate
from typing import Any, Final, TypeVar
from urllib.parse import parse_qsl, quote, quote_plus, unquote

from pydantic import BaseModel

from mendgraph.nodes.execute_tools.secrets import keys, shapes

# --- Secrets that are known by value

SHORTEST_VALUE: Final = 6
"""Characters of the shortest value that is looked for: shorter ones are all over ordinary text."""
SHORTEST_WORD: Final = 16
"""Characters of the shortest one that is made of letters of one case: shorter ones may be words, like `postgres`."""
SHORTEST_NUMBER: Final = 9  # digits of the shortest one that is a number: shorter ones may be counts, years and ports
SHORTEST_LINE: Final = 16  # characters of the shortest line of a longer value that is looked for by itself
SHORTEST_BASE64: Final = 10  # characters of base64 that have to be the value's own wherever in a longer text it stands
SHORTEST_KEY: Final = 12
"""Characters of the shortest key of a model that is looked for: those of local servers are words, like `lm-studio`."""

_WORD = re.compile(r"[a-z]+|[A-Z][a-z]*|[A-Z]+")
_NUMBERED_WORD = re.compile(r"[A-Za-z]+[0-9]{0,4}")
_PATH = re.compile(r"(?:~|\.{1,2})?(?:/[\w.@-]+)+/?")
_KEY_NAME = re.compile(r"(?:^|_)(?:KEY|PAT|PASS|PWD|PSK|SALT|AUTH)$")
"""Last words of a variable's name that stand for a secret in an environment, though not in a program."""
_NO_SECRET = frozenset({"PWD", "OLDPWD", "SSH_AUTH_SOCK"})


def known_values(environment: Mapping[str, str]) -> tuple[str, ...]:
    """The secrets among these variables: values under secret names, and passwords in URLs. None twice."""
    values_found: dict[str, None] = {}

    for name, value in environment.items():
        password = ""

        if "://" in value:
            password = shapes.url_password(value)
            query = parse_qsl(value.partition("?")[2])  # as in PostgreSQL's `?password=`
            values_found.update(dict.fromkeys(text for name, text in query if keys.is_secret_key(name)))

        if password:
            values_found.update(dict.fromkeys((password, unquote(password))))
        elif is_findable(value) and _is_secret_variable(name):
            values_found[value] = None

    return tuple(value for value in values_found if is_findable(value))


def is_findable_key(key: str) -> bool:
    """Whether the key of a model is looked for, which need not be a secret at all."""
    return len(key) >= SHORTEST_KEY and is_findable(key)


def is_findable(value: str) -> bool:
    """Whether a known value is looked for.

    Not, where it would be found in harmless text as well: where it is short, a word, a small number, a path, or a few
    words of those that examples are made of, such as `password`, `changeme`, `true`, `test-token` and `secret123`.
    """
    if len(value) < SHORTEST_VALUE or _PATH.fullmatch(value) or len(set(value)) <= 2:
        return False
    if _WORD.fullmatch(value) or (keys.is_plain(value) and not any(char.isdigit() for char in value)):
        return len(value) >= SHORTEST_WORD
    if value.isdigit():
        return len(value) >= SHORTEST_NUMBER

    return not (_NUMBERED_WORD.fullmatch(value) and keys.is_plain(value))


def forms_of(values: Iterable[str]) -> tuple[str, ...]:
    """Each form in which these values may stand in a text, the longest first."""
    stripped = [value.strip() for value in values if is_findable(value.strip())]
    lines = [line.strip() for value in stripped if len(value.splitlines()) > 1 for line in value.splitlines()]
    forms = {form for value in stripped for form in _spellings(value) if form}
    forms.update(line for line in lines if len(line) >= SHORTEST_LINE and is_findable(line))

    return tuple(sorted(forms, key=lambda form: (-len(form), form)))


@lru_cache(maxsize=1024)  # names, never values: a run asks about the same ones at every step
def _is_secret_variable(name: str) -> bool:
    if name.upper() in _NO_SECRET:
        return False
    return keys.names_a_literal(name) or keys.is_secret_key(name) or bool(_KEY_NAME.search(name.upper()))


def _spellings(value: str) -> Iterator[str]:
    """As it is, escaped once and twice for JSON and Python, for URLs and for HTML, in base64 and in hex."""
    yield value
    for once in set(_escaped(value)):
        yield once
        yield from _escaped(once)

    yield html.escape(value)

    for quoted in (
        quote(value, safe="", errors="replace"),
        quote_plus(value, errors="replace"),
        quote(value, errors="replace"),
    ):
        yield quoted
        yield re.sub(r"%[0-9A-F]{2}", lambda match: match[0].lower(), quoted)

    data = value.encode("utf-8", "surrogatepass")
    yield data.hex()
    yield data.hex().upper()

    for shift in range(3):
        yield from _base64(data, shift)


def _escaped(value: str) -> Iterator[str]:
    yield json.dumps(value)[1:-1]
    yield json.dumps(value, ensure_ascii=False)[1:-1]
    yield repr(value)[1:-1]


def _base64(data: bytes, shift: int) -> Iterator[str]:
    """What of its base64 is the same whatever stands before and after it; `shift` bytes of a group stand before."""
    text = base64.b64encode(b"\0" * shift + data).decode("ascii")
    start = -(-8 * shift // 6)
    end = 8 * (shift + len(data)) // 6
    runs = [text[start:end]] if end - start >= SHORTEST_BASE64 else []

    if not shift:
        runs.append(text.rstrip("="))

    for run in runs:
        yield run
        yield run.translate(str.maketrans("+/", "-_"))


# --- The policy

PLACEHOLDER: Final = "***"  # stands in records (logs, traces, alerts) for what was taken out. Source: spec 4.
MARK: Final = "[redacted secret]"
"""Stands in content (results, messages, replies, streamed text, final bytes) for what was taken out.

Unlike `PLACEHOLDER` it is in no ordinary text, so that a write that carries it is noticed. It has no sign that JSON,
a URL or a shell's quotes would have to escape.
"""

_LINK = re.compile(r"[\s=:,>($}]")
"""Stands where a secret is told by a name or a word before it, and not by its value or by signs of its own."""

_PASSES: Final = 4  # times that a text is gone through at most, until nothing more is found
Shown = TypeVar("Shown")


def fail_closed(redacted: Callable[[], Shown], mark: Shown) -> Shown:
    """What `redacted` returns, or the mark where it raises: what cannot be looked through is not shown."""
    try:
        return redacted()
    except Exception:  # noqa: BLE001 - whatever is wrong
        return mark


def without_spans(
    text: str, spans: Iterable[tuple[int, int]], mark: str = MARK, start: int = 0, end: int | None = None
) -> str:
    """`text[start:end]` with the mark for each of the spans, which are in order and apart; a cut one is a mark, too."""
    end = len(text) if end is None else end
    pieces = []

    for begin, stop in spans:
        if stop > start and begin < end:
            pieces += [text[start:begin], mark]
            start = stop

    return "".join([*pieces, text[start:end]])


@dataclass(frozen=True)
class Redactor:
    """The policy. `values` are the secrets that are known, as `known_values` finds them; it shows none of them.

    `value` is for records, where everything under a secret's name goes. `text`, `content` and `final` are for content
    that has to stay right where it is harmless, such as source code: there a literal under a secret's name goes only
    where it looks like a secret. Without secrets all but `value` give back the object that they were given.
    """

    values: Iterable[str] = field(default=(), repr=False)
    forms: tuple[str, ...] = field(init=False, repr=False, compare=False)
    """The known values in each form in which they may stand somewhere, the longest first."""

    def __post_init__(self) -> None:
        values = tuple(self.values)
        object.__setattr__(self, "values", values)
        object.__setattr__(self, "forms", forms_of(value for value in values if value not in MARK))

    def value(self, value: Any) -> Any:
        """A copy made of plain JSON values, with each secret replaced by `***`; `***` alone where that fails."""
        return fail_closed(lambda: self._walked(value, _RECORD), PLACEHOLDER)

    def content(self, value: Any) -> Any:
        """A copy made of plain JSON values that are content: the replies' arguments, the results' data."""
        return fail_closed(lambda: self._walked(value, _CONTENT), MARK)

    def text(self, text: str) -> str:
        """The text with each secret replaced by `MARK`, or `MARK` alone where it cannot be looked through."""
        return fail_closed(lambda: self._document(text, _CONTENT), MARK)

    def unnamed(self, text: str) -> str:
        """The text without what is known or has a secret's shape; what it calls a password by itself may stay."""
        return fail_closed(lambda: self._replaced(text, MARK, names=False), MARK)

    def final(self, data: bytes) -> bytes:
        """The bytes that leave, without what is known and without what has a secret's shape; JSON stays JSON."""

        def final() -> bytes:
            text = data.decode("utf-8", "surrogateescape")
            masked = self._replaced(text, MARK, names=False)
            if masked is text:
                return data
            broken = _is_json(text) and not _is_json(masked)
            if broken:
                return json.dumps(MARK).encode()
            return masked.encode("utf-8", "surrogateescape")

        return fail_closed(final, MARK.encode())

    def spans(self, text: str, *, names: bool = True) -> list[tuple[int, int]]:
        """Where the secrets in a text stand, in order and apart; without `names` only those known or with a shape."""
        if len(text) < SHORTEST_VALUE:
            return []
        found: list[tuple[int, int]] = []
        for form in [form for form in self.forms if form in text]:
            starts = (match.start() for match in re.finditer(f"(?={re.escape(form)})", text))
            found += [(start, start + len(form)) for start in starts]
        linked = _LINK.search(text) is not None
        if not linked and len(text) < shapes.SHORTEST_TOKEN:
            return _joined(found)
        folded = keys.fold(text) if linked else ""
        found.extend(shapes.shape_spans(text, folded))
        if names and linked:
            found.extend(keys.assignment_spans(text, folded))
        return _joined(found)

    def pending(self, text: str) -> int:
        """Where a known value begins that what follows this text may end, or the text's length."""
        return min((_unfinished(text, form) for form in self.forms), default=len(text))

    def _replaced(self, text: str, mark: str, *, names: bool = True) -> str:
        for _ in range(_PASSES):
            spans = self.spans(text, names=names)
            if not spans:
                return text
            text = without_spans(text, spans, mark)
        return mark if self.spans(text, names=names) else text

    def _document(self, text: str, kind: "_Kind") -> str:
        """A text; where it is a JSON document, what its strings say once they are read as well."""
        if len(text) > _SHORT:
            return self._looked_through(text, kind)
        masked = _short_document(self, text, kind)
        return text if masked == text else masked

    def _looked_through(self, text: str, kind: "_Kind") -> str:
        masked = self._replaced(text, kind.mark)
        if (parsed := _parsed(masked)) is None:
            return masked
        walked = self._walked(parsed, kind)
        if walked == parsed:
            return masked
        return _dumped(walked, masked)

    def _walked(self, value: Any, kind: "_Kind", *, secret: str = "") -> Any:
        """A copy without secrets of what stands under the name `secret`; "" where that is no secret's."""
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, str):
            if kind.hides(value, secret):
                return kind.mark
            return self._document(value, kind)
        if isinstance(value, int | float):
            return kind.mark if kind.hides(value, secret) else value
        if isinstance(value, Mapping):
            return {
                self._document(key, kind): self._walked(item, kind, secret=name)
                for key, item, name in _fields(value, kind, secret)
            }
        if isinstance(value, list | tuple | set | frozenset):
            return [self._walked(variant, kind, secret=secret) for variant in _without_passwords(value, kind)]
        return self._walked(_plain(value), kind, secret=secret)


@dataclass(frozen=True)
class _Kind:
    """What stands for a secret, and whether everything under a secret's name is one."""

    mark: str
    strict: bool

    def hides(self, value: str | float, secret: str) -> bool:
        """Whether a text or a number under a secret's name goes."""
        if not secret or (self.strict and keys.is_secret_key(secret)):
            return bool(secret)
        if isinstance(value, str):
            return keys.looks_secret_under(secret, value)
        return keys.is_secret_number(secret, value)

    def covers(self, key: str, inside: str) -> str:
        """The secret's name that a value is under: this one, or one that it is `inside` of; "" where there is none."""
        if self.strict and keys.is_secret_key(inside or key):
            return inside or key
        if keys.names_a_literal(key):
            return key
        return "" if keys.is_about(key) else inside


_SHORT: Final = 100
"""Characters of texts that come again and again: the names of fields, tools and events, numbers of lines, paths."""


@lru_cache(maxsize=2_048)
def _short_document(redactor: Redactor, text: str, kind: _Kind) -> str:
    return redactor._looked_through(text, kind)  # noqa: SLF001 - its own


_NAME_FIELDS: Final = frozenset(
    {"name", "key", "header", "variable", "field", "option", "parameterkey", "parametername"}
)
_VALUE_FIELDS: Final = frozenset({"value", "val", "default", "parametervalue", "defaultvalue", "stringvalue"})
"""Fields of one object that hold the name and the value of something else, in lower case."""
_LONGEST_NAME: Final = 120
_DOCUMENT_ENDS: Final = frozenset({"{}", "[]", '""'})
_RECORD: Final = _Kind(PLACEHOLDER, strict=True)
_CONTENT: Final = _Kind(MARK, strict=False)
_DEFAULT: Final = Redactor()


def redact(value: Any) -> Any:
    """A copy for records, made by the policy without known values."""
    return _DEFAULT.value(value)


def _fields(value: Mapping[Any, Any], kind: _Kind, secret: str) -> Iterator[tuple[str, Any, str]]:
    """The fields of an object, each with the secret's name that it is under: its own, or what another field says."""
    name_text = ""
    if value:
        name_text = "".join(str(item) for key, item in value.items() if str(key).lower() in _NAME_FIELDS)
    paired = ""
    if len(name_text) <= _LONGEST_NAME and keys.names_a_literal(name_text):
        paired = name_text
    for key, item in ((str(key), item) for key, item in value.items()):
        is_value = paired and key.lower() in _VALUE_FIELDS
        yield key, item, paired if is_value else kind.covers(key, secret)


def _without_passwords(value: Iterable[Any], kind: _Kind) -> list[Any]:
    """The items of a list; where it is a command line, with a mark for each password in it."""
    items = list(value)
    if not all(isinstance(item, str) for item in items) or not any(item.startswith("-") for item in items):
        return items
    line = " ".join(items)
    spans = _DEFAULT.spans(line)
    starts = accumulate((len(item) + 1 for item in items), initial=0)
    return [
        without_spans(line, spans, kind.mark, start, start + len(item))
        for start, item in zip(starts, items, strict=False)
    ]


def _unfinished(text: str, form: str) -> int:
    """Where the longest end of the text begins that the form begins with."""
    at = text.find(form[0], max(0, len(text) - len(form) + 1))
    while at >= 0:
        if form.startswith(text[at:]):
            return at
        at = text.find(form[0], at + 1)
    return len(text)


def _joined(spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    joined: list[tuple[int, int]] = []
    for start, end in sorted(spans):
        if joined and start <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((start, end))
    return joined


def _plain(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    if isinstance(value, bytes | bytearray | memoryview):
        return f"<{len(value)} bytes>"
    return f"<{type(value).__name__}>"


def _parsed(text: str) -> Any:
    """What a text says as a JSON document in which reading may show more than the text does, or None."""
    trimmed = text.strip()
    ends = trimmed[:1] + trimmed[-1:]
    if ends not in _DOCUMENT_ENDS:
        return None
    escaped = "\\" in trimmed
    if not escaped and (ends == '""' or not keys.has_secret_word(keys.fold(trimmed))):
        return None
    try:
        return json.loads(trimmed, parse_constant=str)
    except (ValueError, RecursionError):
        return None


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def _dumped(value: Any, like: str) -> str:
    indent = 2 if "\n" in like.strip() else None
    if indent is not None or ": " in like or ", " in like:
        close = None
    else:
        close = (",", ":")
    return json.dumps(value, ensure_ascii=like.isascii(), indent=indent, separators=close)


# --- Parts of a text: files with keys in them, pieces between whole words, streams
#
# What is shown may be the middle of a key without its first line, or what a cut leaves of a secret that is told by how
# it begins, by how long it is, or by the name before it. So what stands around a part is looked at with it. The number
# of lines stays as it is.

_BEGIN: Final = "-----BEGIN"
_INK = re.compile(r"\S(?:[^\n]*\S)?")  # A line without the spaces around it


def masked_blocks(text: str) -> str:
    """The text with `MARK` in each line of each block of a key; the same object where there is none."""
    if _BEGIN not in text:
        return text
    pieces = list[str]()
    at = 0
    for start, stop in shapes.key_block_spans(text):
        block = _INK.sub(lambda line: MARK if any(map(str.isalnum, line[0])) else line[0], text[start:stop])
        pieces += [text[at:start], block]
        at = stop
    return "".join([*pieces, text[at:]]) if pieces else text


def masked_lines(text: str) -> dict[int, str]:
    """The lines of which a block of a key takes something, by number from 1, with `MARK` in its place."""
    if (masked := masked_blocks(text)) is text:
        return {}
    pairs = zip(text.split("\n"), masked.split("\n"), strict=True)
    return {number: masked_line for number, (line, masked_line) in enumerate(pairs, start=1) if masked_line != line}


MARGIN: Final = 1_024
"""Characters around a piece, or before new text of a stream, that are looked at with it: a name and its value."""

_BREAK = re.compile(r"[\s(){}\[\]<>,;]|[^\x00-\u2e7f]")  # the large range in the class would take 10 times as long
"""Stands between words. Quotes, `=` and `:` do not: a name and its value stay together."""


def whole_words(text: str, start: int, end: int, mark: str = MARK) -> tuple[str, int, int]:
    """The whole words of `text[start:end]` with `mark` for each secret, and where the piece begins and ends.

    A secret that one of the ends cuts is a mark as a whole; `start` and `end` lie in the text. The piece is "" where no
    word is whole, and `mark` where the text cannot be looked through.
    """
    before = max(0, start - MARGIN)
    window = text[before : end + MARGIN]
    spans = fail_closed(lambda: _DEFAULT.spans(window), None)
    if spans is None:
        return mark, start, end
    first = _first(window, start - before, spans)
    last = max(first, _last(window, end - before, spans))
    return without_spans(window, spans, mark, first, last), before + first, before + last


def next_piece(text: str, start: int, end: int) -> tuple[str, int]:
    """What `text[start:end]` says with MARK for each secret, and where it ends, so that the next piece begins there.

    It ends where a word or a secret does; only a word that fills it is cut. A secret that `start` or `end` lies in is a
    mark in the pieces on both sides, if the text begins before it.
    """
    spans = fail_closed(lambda: _DEFAULT.spans(text), None)
    if spans is None:
        return MARK, end
    last = _last(text, end, spans)
    last = last if last > start else min(end, len(text))
    covered = max((stop for begin, stop in spans if begin < last), default=last)
    return without_spans(text, spans, MARK, start, last), max(covered, last)


def first_words(text: str, most: int, mark: str = MARK) -> str:
    """The text itself if it is at most `most` characters long, else the whole words among the first of them."""
    if len(text) <= most:
        return text
    return whole_words(text, 0, most, mark)[0]


def _first(window: str, at: int, spans: list[tuple[int, int]]) -> int:
    """The first place from `at` on where a word or a secret begins, or where the secret begins that `at` is inside."""
    if at == 0 or _BREAK.match(window, at - 1):
        return next((start for start, stop in spans if start < at < stop), at)
    for start, stop in spans:
        if start <= at < stop:
            return start
    line_break = _BREAK.search(window, at)
    places = [start for start, _ in spans if start >= at]
    return min([*places, line_break.start() if line_break else len(window)])


def _last(window: str, at: int, spans: list[tuple[int, int]]) -> int:
    """The last place up to `at` where a word or a secret ends, or where the secret ends that `at` is inside."""
    for start, stop in spans:
        if start < at <= stop:
            return stop
    if at >= len(window) or _BREAK.match(window, at):
        return min(at, len(window))
    places = [stop for _, stop in spans if stop <= at]
    breaks = [match.end() for match in _BREAK.finditer(window, 0, at)]
    return max([0, *places, *breaks[-1:]])


_LONG: Final = 2048
"""Characters held back from which on they are looked at only when an eighth more has come: it takes linear time."""

_WORD_END = re.compile(r"\s|[^\x00-\u2e7f]")
"""Where a word ends: only known values and blocks of keys go on beyond the last such place."""


class RedactedStream:
    """One text in pieces. What `feed` and `close` return is, put together, `redactor.text` of the whole.

    Two things differ: documents in JSON are read when they are whole, which a stream never is, and a value whose name
    comes only behind it has been shown by then. Ordinary text is held back until its word ends; the start of a key's
    block or of a known value until it is known what it is.
    """

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor
        self._shown = ""
        self._held = ""
        self._wait = 0

    def feed(self, piece: str) -> str:
        """Take the next piece; what may be shown now."""
        self._held += piece
        if len(self._held) < self._wait:
            return ""
        text_shown = fail_closed(lambda: self._show(self._safe_end()), None)
        if text_shown is None:
            self._held = ""
        return MARK if text_shown is None else text_shown

    def close(self) -> str:
        """No piece follows; the rest."""
        return fail_closed(lambda: self._show(len(self._held)), MARK)

    def _safe_end(self) -> int:
        """The characters held back about which nothing that follows can change anything."""
        if not (word_ends := [match.end() for match in _WORD_END.finditer(self._held)]):
            return 0
        text = self._shown + self._held
        end = len(self._shown) + word_ends[-1]
        block = shapes.open_block(text)
        end = min(end, self._redactor.pending(text), len(text) if block is None else block)
        return max(0, end - len(self._shown))

    def _show(self, count: int) -> str:
        """Take that many characters from what is held back, and fewer where a secret goes on beyond them."""
        if not count and len(self._held) > _LONG:
            self._wait = len(self._held) * 9 // 8
        else:
            self._wait = 0
        if not count:
            return ""
        text = self._shown + self._held
        begin = len(self._shown)
        spans = self._redactor.spans(text)
        end = next((start for start, stop in spans if start < begin + count < stop), begin + count)
        end = max(begin, end)
        self._shown = text[max(0, end - MARGIN) : end]
        self._held = text[end:]
        if end > begin:
            return without_spans(text, spans, MARK, begin, end)
        return ""
