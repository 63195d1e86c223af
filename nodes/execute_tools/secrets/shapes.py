"""The search for secrets that have a known shape. Pure."""

import re
import string
from collections.abc import Iterator
from typing import Final

from mendgraph.nodes.execute_tools.secrets.key_blocks import key_block_spans
from mendgraph.nodes.execute_tools.secrets.shape_table import SHAPES, URL_LOGIN, Scope, Shape, is_url_login

SHORTEST_TOKEN: Final = 15
"""Characters of the shortest key that is recognized by its prefix."""

_TOKEN_SIGNS: Final = (string.ascii_letters + string.digits + "_-.+/=~:").encode()
_TOKEN_BYTES: Final = bytes(byte if byte in _TOKEN_SIGNS else ord(" ") for byte in range(256))
"""A table for `bytes.translate`: a space for each byte that no key has."""
_OPTION: Final = re.compile(r"""[ \t"'`]-[a-zA-Z-]""")


def shape_spans(text: str, folded: str) -> Iterator[tuple[int, int]]:
    """Yield the spans of secrets with a known shape. `folded` is the text in lower case."""
    for shape in _candidates(text, folded):
        searched = folded if shape.scope is Scope.FOLDED else text
        for match in shape.pattern.finditer(searched):
            start, end = match.span("secret")
            if shape.accepts(text[start:end]):
                yield start, end

    if "PRIVATE KEY" in text:
        yield from key_block_spans(text)


def url_password(url: str) -> str:
    """Return the password in a URL as it is written there, or ""."""
    login = URL_LOGIN.pattern.search(url)
    if login and is_url_login(login["secret"]):
        return login["secret"].partition(":")[2]

    return ""


def _candidates(text: str, folded: str) -> Iterator[Shape]:
    """Yield the shapes of which the text has a word."""
    searched = {Scope.TOKEN: _long_tokens(text), Scope.TEXT: folded, Scope.FOLDED: folded, Scope.COMMAND: ""}
    if _OPTION.search(text):
        searched[Scope.COMMAND] = folded

    for shape in SHAPES:
        words_text = searched[shape.scope]
        for word in shape.words:
            if word in words_text:
                yield shape
                break


def _long_tokens(text: str) -> str:
    """Return the words that are long enough for a key, which are a small part of an ordinary text."""
    words = text.encode("utf-8", "surrogatepass").translate(_TOKEN_BYTES).split()
    return b" ".join([word for word in words if len(word) >= SHORTEST_TOKEN]).decode("ascii")
