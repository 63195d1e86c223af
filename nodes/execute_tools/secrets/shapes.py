"""The search for secrets that are recognized by their shape. Pure."""

import re
import string
from collections.abc import Iterable, Iterator
from typing import Final

from mendgraph.nodes.execute_tools.secrets.key_blocks import key_block_spans
from mendgraph.nodes.execute_tools.secrets.keys import hinted, meanings_in
from mendgraph.nodes.execute_tools.secrets.shape_table import COMMAND_SHAPES, SHAPES, URL_LOGIN, Shape, is_url_login

SHORTEST_TOKEN: Final = 15
"""Characters of the shortest key that is recognized by its prefix."""
_TOKEN_SIGNS: Final = (string.ascii_letters + string.digits + "_-.+/=~:").encode()
_TOKEN_BYTES: Final = bytes(byte if byte in _TOKEN_SIGNS else ord(" ") for byte in range(256))
"""A table for `bytes.translate`: a space for each byte that no key has."""


def _words_of(shapes: Iterable[Shape]) -> Iterator[tuple[str, Shape]]:
    for shape in shapes:
        for word in shape.words:
            yield word, shape


_LOOSE_WORDS: Final = hinted(
    _words_of(shape for shape in SHAPES if shape.loose and shape not in COMMAND_SHAPES),
    ("password", "pwd", "auth", "key=", "sig", "-credential=", "security-token=", "$", "{s"),
)
_COMMAND_WORDS: Final = hinted(_words_of(COMMAND_SHAPES), ("mysql", "mongo", "ldap"))
_TOKEN_WORDS: Final = hinted(_words_of(shape for shape in SHAPES if not shape.loose), ("_", ".", "-"))
_OPTION: Final = re.compile(r"""[ \t"'`]-[a-zA-Z-]""")


def shape_spans(text: str, folded: str) -> Iterator[tuple[int, int]]:
    """The spans of secrets with a known shape. `folded` is the text in lower case."""
    shapes = dict.fromkeys(meanings_in(_LOOSE_WORDS, folded))
    if _OPTION.search(text):
        shapes.update(dict.fromkeys(meanings_in(_COMMAND_WORDS, folded)))

    tokens = _long_tokens(text)
    if tokens:
        shapes.update(dict.fromkeys(meanings_in(_TOKEN_WORDS, tokens)))

    for shape in shapes:
        searched = folded if shape.folded else text
        for match in shape.pattern.finditer(searched):
            start, end = match.span("secret")
            if shape.accepts(text[start:end]):
                yield start, end

    if "PRIVATE KEY" in text:
        yield from key_block_spans(text)


def url_password(value: str) -> str:
    """The password in a URL that is the whole value, as it is written there, or ""."""
    if "://" not in value:
        return ""

    login = URL_LOGIN.pattern.search(value)
    if login and is_url_login(login["secret"]):
        return login["secret"].partition(":")[2]

    return ""


def _long_tokens(text: str) -> str:
    """The words that are long enough for a key: a small part of ordinary text, so that the search is fast."""
    words = text.encode("utf-8", "surrogatepass").translate(_TOKEN_BYTES).split()
    return b" ".join([word for word in words if len(word) >= SHORTEST_TOKEN]).decode("ascii")
