"""The secrets that are known by value: which values are worth looking for, and in which forms. Pure."""

import base64
import html
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Final
from urllib.parse import parse_qsl, quote, quote_plus, unquote

from mendgraph.nodes.execute_tools.secrets.keys import is_plain, is_secret_key, names_a_literal
from mendgraph.nodes.execute_tools.secrets.shapes import url_password

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
    found: dict[str, None] = {}
    for name, value in environment.items():
        password = ""
        if "://" in value:
            password = url_password(value)
            query = parse_qsl(value.partition("?")[2])  # as in PostgreSQL's `?password=`
            found.update(dict.fromkeys(text for name, text in query if is_secret_key(name)))
        if password:
            found.update(dict.fromkeys((password, unquote(password))))
        elif is_findable(value) and _is_secret_variable(name):
            found[value] = None
    return tuple(value for value in found if is_findable(value))


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
    if _WORD.fullmatch(value) or (is_plain(value) and not any(char.isdigit() for char in value)):
        return len(value) >= SHORTEST_WORD
    if value.isdigit():
        return len(value) >= SHORTEST_NUMBER
    return not (_NUMBERED_WORD.fullmatch(value) and is_plain(value))


def forms_of(values: Iterable[str]) -> tuple[str, ...]:
    """Each form in which these values may stand in a text, the longest first."""
    whole = [value.strip() for value in values if is_findable(value.strip())]
    lines = [line.strip() for value in whole if len(value.splitlines()) > 1 for line in value.splitlines()]
    found = {form for value in whole for form in _spellings(value) if form}
    found.update(line for line in lines if len(line) >= SHORTEST_LINE and is_findable(line))
    return tuple(sorted(found, key=lambda form: (-len(form), form)))


@lru_cache(maxsize=1024)  # names, never values: a run asks about the same ones at every step
def _is_secret_variable(name: str) -> bool:
    if name.upper() in _NO_SECRET:
        return False
    return names_a_literal(name) or is_secret_key(name) or bool(_KEY_NAME.search(name.upper()))


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
        yield re.sub(r"%[0-9A-F]{2}", lambda found: found[0].lower(), quoted)
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
    found = [text[start:end]] if end - start >= SHORTEST_BASE64 else []
    if not shift:
        found.append(text.rstrip("="))
    for own in found:
        yield own
        yield own.translate(str.maketrans("+/", "-_"))
