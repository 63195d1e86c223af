"""Redaction: removes secrets from all that is shown or stored. Pure; what cannot be searched is not shown.

Secrets are recognized by their known values, by their shape, and by the name that they are assigned to.
"""

import base64
import html
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, is_dataclass
from functools import lru_cache
from typing import Any, Final, TypeVar
from urllib.parse import parse_qsl, quote, quote_plus, unquote

from pydantic import BaseModel

from mendgraph.nodes.execute_tools.secrets import keys, shapes

# --- Known values

SHORTEST_VALUE: Final = 6
"""Characters of the shortest value that is searched for: shorter ones are common in ordinary text."""
SHORTEST_WORD: Final = 16
"""Characters of the shortest value made of letters of one case: shorter ones may be words, like `postgres`."""
SHORTEST_NUMBER: Final = 9
"""Digits of the shortest value that is a number: shorter ones may be counts, years and ports."""
SHORTEST_LINE: Final = 16
"""Characters of the shortest line that is searched for by itself in a value of several lines."""
SHORTEST_BASE64: Final = 10
"""Characters of base64 that depend on the value alone, wherever it stands in a longer encoded text."""
SHORTEST_KEY: Final = 12
"""Characters of the shortest model key that is searched for: those of local servers are words, like `lm-studio`."""

_WORD = re.compile(r"[a-z]+|[A-Z][a-z]*|[A-Z]+")
_NUMBERED_WORD = re.compile(r"[A-Za-z]+[0-9]{0,4}")
_PATH = re.compile(r"(?:~|\.{1,2})?(?:/[\w.@-]+)+/?")
_KEY_NAME = re.compile(r"(?:^|_)(?:KEY|PAT|PASS|PWD|PSK|SALT|AUTH)$")
"""Last words of an environment variable's name that stand for a secret; in a program they need not."""
_NO_SECRET = frozenset({"PWD", "OLDPWD", "SSH_AUTH_SOCK"})


def known_values(environment: Mapping[str, str]) -> tuple[str, ...]:
    """Return the secrets in these variables, without duplicates: values under secret names, and passwords in URLs."""
    values: list[str] = []

    for name, padded in environment.items():
        value = padded.strip()  # as clients send it
        password = shapes.url_password(value) if "://" in value else ""
        if "://" in value:
            query = parse_qsl(value.partition("?")[2])  # such as `?password=` of PostgreSQL
            values += [text for key, text in query if keys.is_secret_key(key)]

        if password:
            values += [password, unquote(password)]
        elif is_findable(value) and _is_secret_variable(name):
            values.append(value)

    return tuple(value for value in dict.fromkeys(values) if is_findable(value))


def is_findable_key(key: str) -> bool:
    """Return whether the key of a model is searched for; that of a local server need not be a secret."""
    return len(key) >= SHORTEST_KEY and is_findable(key)


def is_findable(value: str) -> bool:
    """Return whether a known value is searched for.

    False for a value that occurs in harmless text as well: one that is short, a word, a small number, a path, or made
    of words of examples, such as `password`, `changeme`, `true`, `test-token` and `secret123`.
    """
    if len(value) < SHORTEST_VALUE or _PATH.fullmatch(value) or len(set(value)) <= 2:
        return False
    if _WORD.fullmatch(value) or (keys.is_plain(value) and not any(char.isdigit() for char in value)):
        return len(value) >= SHORTEST_WORD
    if value.isdigit():
        return len(value) >= SHORTEST_NUMBER

    return not (_NUMBERED_WORD.fullmatch(value) and keys.is_plain(value))


def forms_of(values: Iterable[str]) -> tuple[str, ...]:
    """Return all forms in which these values may occur in a text, the longest first."""
    forms: set[str] = set()

    for value in map(str.strip, values):
        if not is_findable(value):
            continue

        forms.update(_encoded_forms(value))
        lines = value.splitlines()
        for line in map(str.strip, lines if len(lines) > 1 else ()):
            if len(line) >= SHORTEST_LINE and is_findable(line):
                forms.add(line)

    return tuple(sorted(forms - {""}, key=lambda form: (-len(form), form)))


def _is_secret_variable(name: str) -> bool:
    if name.upper() in _NO_SECRET:
        return False

    return keys.names_a_literal(name) or keys.is_secret_key(name) or bool(_KEY_NAME.search(name.upper()))


def _encoded_forms(value: str) -> Iterator[str]:
    """Yield the value, its escaped forms (once and twice for JSON and Python, for URLs and HTML), base64 and hex."""
    yield value
    for escaped in set(_escaped_forms(value)):
        yield escaped
        yield from _escaped_forms(escaped)

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

    for offset in range(3):
        yield from _base64_forms(data, offset)


def _escaped_forms(value: str) -> Iterator[str]:
    yield json.dumps(value)[1:-1]
    yield json.dumps(value, ensure_ascii=False)[1:-1]
    yield repr(value)[1:-1]


def _base64_forms(data: bytes, offset: int) -> Iterator[str]:
    """Yield the base64 that does not depend on the text around it; `offset` bytes of a group stand before the data."""
    text = base64.b64encode(b"\0" * offset + data).decode("ascii")
    start = -(-8 * offset // 6)
    end = 8 * (offset + len(data)) // 6
    forms = []

    if end - start >= SHORTEST_BASE64:
        forms.append(text[start:end])
    if not offset:
        forms.append(text.rstrip("="))

    for form in forms:
        yield form
        yield form.translate(str.maketrans("+/", "-_"))


# --- The redactor

Span = tuple[int, int]
"""Start and end of a secret in a text."""

PLACEHOLDER: Final = "***"
"""Replaces a secret in records (logs, traces, alerts). Source: spec 4."""
MARK: Final = "[redacted secret]"
"""Replaces a secret in content (results, messages, replies, streamed text, final bytes).

Unlike `PLACEHOLDER` it occurs in no ordinary text, so that a write that contains it is detected. It has no sign that
JSON, a URL or a shell's quotes would have to escape.
"""

_LINK = re.compile(r"[\s=:,>($}]")
"""Occurs in every text with a secret that is recognized by a name or a word before it."""

_PASSES: Final = 4
"""Most times that a text is searched until no secret remains."""
Value = TypeVar("Value")


def fail_closed(redacted: Callable[[], Value], mark: Value) -> Value:
    """Return the result of `redacted`, or the mark if it raises."""
    try:
        return redacted()
    except Exception:  # noqa: BLE001 - any error
        return mark


def without_spans(text: str, spans: Iterable[Span], mark: str = MARK, start: int = 0, end: int | None = None) -> str:
    """`text[start:end]` with the mark for each span, also for one that is cut. The spans are ordered and disjoint."""
    end = len(text) if end is None else end
    pieces = []

    for span_start, span_end in spans:
        if span_end > start and span_start < end:
            pieces += [text[start:span_start], mark]
            start = span_end

    return "".join([*pieces, text[start:end]])


@dataclass(frozen=True)
class Redactor:
    """Removes secrets. `values` are the known ones, as `known_values` returns them; its representation shows none.

    `value` is for records, in which all values under a secret's name are removed. `text`, `content` and `final` are for
    content that has to stay correct where it is harmless, such as source code: a literal under a secret's name is
    removed only if it looks like a secret. Without secrets all but `value` return the same object.
    """

    values: Iterable[str] = field(default=(), repr=False)
    forms: tuple[str, ...] = field(init=False, repr=False, compare=False)
    """All forms of the known values, the longest first."""

    def __post_init__(self) -> None:
        values = tuple(self.values)
        object.__setattr__(self, "values", values)
        object.__setattr__(self, "forms", forms_of(value for value in values if value not in MARK))

    def value(self, value: Any) -> Any:
        """Return a copy of plain JSON values for a record, with `***` for each secret; `***` alone if that fails."""
        return fail_closed(lambda: self._redacted_value(value, _RECORD), PLACEHOLDER)

    def content(self, value: Any) -> Any:
        """Return a copy of plain JSON values that are content: the arguments of replies, the data of results."""
        return fail_closed(lambda: self._redacted_value(value, _CONTENT), MARK)

    def text(self, text: str) -> str:
        """Return the text with `MARK` for each secret; `MARK` alone if it cannot be searched."""
        return fail_closed(lambda: self._document(text, _CONTENT), MARK)

    def unnamed(self, text: str) -> str:
        """Return the text without known values and shapes; a literal that only its name makes a secret stays."""
        return fail_closed(lambda: self._replaced(text, MARK, names=False), MARK)

    def final(self, data: bytes) -> bytes:
        """Return the bytes of an output without known values and shapes; JSON stays JSON."""
        return fail_closed(lambda: self._final(data), MARK.encode())

    def _final(self, data: bytes) -> bytes:
        text = data.decode("utf-8", "surrogateescape")
        masked = self._replaced(text, MARK, names=False)
        if masked is text:
            return data
        if _is_json(text) and not _is_json(masked):
            return json.dumps(MARK).encode()

        return masked.encode("utf-8", "surrogateescape")

    def spans(self, text: str, *, names: bool = True) -> list[Span]:
        """Return the secrets in a text, ordered and disjoint; without `names` only known values and shapes."""
        if len(text) < SHORTEST_VALUE:
            return []

        spans: list[Span] = []
        for form in self.forms:
            spans += _occurrences(form, text)

        has_link = _LINK.search(text) is not None
        if not has_link and len(text) < shapes.SHORTEST_TOKEN:
            return _merged(spans)

        folded = keys.fold(text) if has_link else ""
        spans += shapes.shape_spans(text, folded)
        if names and has_link:
            spans += keys.assignment_spans(text, folded)

        return _merged(spans)

    def pending(self, text: str) -> int:
        """Return the start of a known value that more text may complete, or the length of the text."""
        return min((_partial_start(text, form) for form in self.forms), default=len(text))

    def _replaced(self, text: str, mark: str, *, names: bool = True) -> str:
        for _ in range(_PASSES):
            spans = self.spans(text, names=names)
            if not spans:
                return text

            text = without_spans(text, spans, mark)

        return mark if self.spans(text, names=names) else text

    def _document(self, text: str, kind: "_Kind") -> str:
        """Return a text, or a JSON document with redacted values."""
        if len(text) > _SHORT:
            return self._uncached_document(text, kind)

        masked = _short_document(self, text, kind)
        return text if masked == text else masked

    def _uncached_document(self, text: str, kind: "_Kind") -> str:
        masked = self._replaced(text, kind.mark)
        parsed = _parsed(masked)
        if parsed is None:
            return masked

        redacted_value = self._redacted_value(parsed, kind)
        if redacted_value == parsed:
            return masked

        return _dumped(redacted_value, masked)

    def _redacted_value(self, value: Any, kind: "_Kind", *, secret: str = "") -> Any:
        """Return a redacted copy of a value under the name `secret`; "" if it is not the name of a secret."""
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, str):
            return kind.mark if kind.removes(value, secret) else self._document(value, kind)
        if isinstance(value, int | float):
            return kind.mark if kind.removes(value, secret) else value

        if isinstance(value, Mapping):
            redacted = {}
            for key, item, name in _fields(value, kind, secret):
                redacted[self._document(key, kind)] = self._redacted_value(item, kind, secret=name)

            return redacted

        if isinstance(value, list | tuple | set | frozenset):
            return [self._redacted_value(item, kind, secret=secret) for item in _without_passwords(value, kind)]

        return self._redacted_value(_plain(value), kind, secret=secret)


@dataclass(frozen=True, eq=False)
class _Kind:
    """The mark for a secret, and whether every value under a secret's name is one (`strict`)."""

    mark: str
    strict: bool

    def removes(self, value: str | float, secret: str) -> bool:
        """Return whether a text or a number under the name `secret` is removed; never for the name ""."""
        if not secret:
            return False
        if self.strict and keys.is_secret_key(secret):
            return True
        if isinstance(value, str):
            return keys.looks_secret_under(secret, value)

        return keys.is_secret_number(secret, value)

    def secret_name(self, key: str, outer: str) -> str:
        """Return the secret's name for a value under `key`: this key, or `outer`, that of the object; "" for none."""
        if self.strict and keys.is_secret_key(outer or key):
            return outer or key
        if keys.names_a_literal(key):
            return key

        return "" if not outer or keys.is_about(key) else outer


_SHORT: Final = 100
"""Most characters of texts that are cached: names of fields, tools and events, line numbers and paths repeat often."""


@lru_cache(maxsize=2_048)
def _short_document(redactor: Redactor, text: str, kind: _Kind) -> str:
    return redactor._uncached_document(text, kind)  # noqa: SLF001 - a method cannot be cached by its arguments alone


_NAME_FIELDS: Final = frozenset(
    {"name", "key", "header", "variable", "field", "option", "parameterkey", "parametername"}
)
_VALUE_FIELDS: Final = frozenset({"value", "val", "default", "parametervalue", "defaultvalue", "stringvalue"})
"""Fields of an object that hold the name and the value of a setting, in lower case."""
_LONGEST_NAME: Final = 120
_DOCUMENT_ENDS: Final = frozenset({"{}", "[]", '""'})
_RECORD: Final = _Kind(PLACEHOLDER, strict=True)
_CONTENT: Final = _Kind(MARK, strict=False)
_DEFAULT: Final = Redactor()


def redact(value: Any) -> Any:
    """Return a copy for records, without known values."""
    return _DEFAULT.value(value)


def _fields(value: Mapping[Any, Any], kind: _Kind, secret: str) -> Iterator[tuple[str, Any, str]]:
    """Key and item of each field of an object, and the secret's name for it: of the field, or the one next to it."""
    setting = "".join(str(item) for key, item in value.items() if str(key).lower() in _NAME_FIELDS)
    if len(setting) > _LONGEST_NAME or (setting and not keys.names_a_literal(setting)):
        setting = ""

    for key, item in value.items():
        name = str(key)
        if setting and name.lower() in _VALUE_FIELDS:
            yield name, item, setting
        else:
            yield name, item, kind.secret_name(name, secret)


def _without_passwords(value: Iterable[Any], kind: _Kind) -> list[Any]:
    """Return the items of a list; if it is a command line, with a mark for each password in it."""
    items = list(value)
    if not all(isinstance(item, str) for item in items) or not any(item.startswith("-") for item in items):
        return items

    line = " ".join(items)
    spans = _DEFAULT.spans(line)
    start = 0
    masked = []

    for item in items:
        masked.append(without_spans(line, spans, kind.mark, start, start + len(item)))
        start += len(item) + 1

    return masked


def _occurrences(form: str, text: str) -> Iterator[Span]:
    """Yield the spans of a form in the text, also of occurrences that overlap."""
    start = text.find(form)
    while start >= 0:
        yield start, start + len(form)
        start = text.find(form, start + 1)


def _partial_start(text: str, form: str) -> int:
    """Return the start of the longest end of the text that is the start of the form."""
    at = text.find(form[0], max(0, len(text) - len(form) + 1))
    while at >= 0:
        if form.startswith(text[at:]):
            return at

        at = text.find(form[0], at + 1)

    return len(text)


def _merged(spans: list[Span]) -> list[Span]:
    """Return the spans in order, with one for those that overlap or touch."""
    merged: list[Span] = []

    for start, end in sorted(spans):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))

    return merged


def _plain(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    if isinstance(value, bytes | bytearray | memoryview):
        return f"<{len(value)} bytes>"

    return f"<{type(value).__name__}>"


def _parsed(text: str) -> Any:
    """Parse a JSON document; None for other texts, and for documents in which parsing reveals nothing new."""
    trimmed = text.strip()
    ends = trimmed[:1] + trimmed[-1:]
    if ends not in _DOCUMENT_ENDS:
        return None

    has_escapes = "\\" in trimmed
    if not has_escapes and (ends == '""' or not keys.has_secret_word(keys.fold(trimmed))):
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
    """Return the value as JSON, with the indentation, separators and character set of the text `like`."""
    indent = 2 if "\n" in like.strip() else None
    separators = None
    if indent is None and ": " not in like and ", " not in like:
        separators = (",", ":")

    return json.dumps(value, ensure_ascii=like.isascii(), indent=indent, separators=separators)
