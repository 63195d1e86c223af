"""Text as tools see it, and the exact bytes behind it: BOM and line ends are facts of the file, not of the text."""

import re
from difflib import SequenceMatcher
from operator import add
from typing import Final, NamedTuple

BOM = "\ufeff"
_UTF_16_BOMS = (b"\xff\xfe", b"\xfe\xff")
SNIFFED_BYTES = 8192
"""How much of a file is searched for NUL, the mark of a binary file. Source: git's buffer_is_binary (8000 bytes)."""
LARGEST_TEXT: Final = 200_000
"""Characters of a text that is judged as code."""

_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")


class TextForm(NamedTuple):
    """How a text file is written: with a BOM or not, and its most frequent line end."""

    has_bom: bool = False
    newline: str = "\n"


class TextFile(NamedTuple):
    """Decoded text with its own line ends, without the BOM, and the form that it came in."""

    text: str
    form: TextForm


def decode_text(data: bytes) -> TextFile | None:
    """Bytes as text; None if they are binary (NUL near the start, or not UTF-8)."""
    if b"\x00" in data[:SNIFFED_BYTES]:
        return None

    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        return None

    has_bom = text.startswith(BOM)
    return TextFile(text.removeprefix(BOM), TextForm(has_bom, dominant_newline(text)))


def why_not_text(data: bytes) -> str:
    """Return what bytes are that `decode_text` cannot read, as the rest of a sentence: `a binary file of 3 bytes`."""
    size = f"{len(data)} byte{'s' * (len(data) != 1)}"
    if data.startswith(_UTF_16_BOMS):
        return f"a UTF-16 text of {size}"

    if b"\x00" not in data[:SNIFFED_BYTES]:
        try:
            data.decode("utf-8")
        except UnicodeDecodeError as error:
            line = data.count(b"\n", 0, error.start) + 1
            return f"a file of {size} that is not UTF-8 (line {line} has the byte 0x{data[error.start]:02X})"

    return f"a binary file of {size}"


def encode_text(text: str, form: TextForm) -> bytes:
    """Text as bytes. Line ends stay as they are; the BOM comes back where the file had one."""
    return ((BOM if form.has_bom else "") + text.removeprefix(BOM)).encode("utf-8")


def dominant_newline(text: str) -> str:
    r"""Return the more frequent of "\r\n" and "\n"; "\n" for a tie or a text without line ends."""
    carriage_returns = text.count("\r\n")
    if 2 * carriage_returns > text.count("\n"):
        return "\r\n"

    return "\n"


def to_unix(text: str) -> str:
    r"""Return the text with "\r\n" as "\n": the form in which models read and write."""
    return text.replace("\r\n", "\n")


def with_newline(text: str, newline: str) -> str:
    r"""Return the text with every "\n" or "\r\n" written as `newline`."""
    unix = to_unix(text)
    if newline == "\n":
        return unix

    return unix.replace("\n", newline)


def with_ends_of(old: str, text: str) -> str:
    r"""Return the text with the line ends of `old`, which it replaces; where that has only "\n", it stays as it is.

    Where `old` has both, a line that stays has its own, and a new one that of the line above or in whose place it is.
    """
    if (pairs := old.count("\r\n")) in {0, old.count("\n")}:
        return with_newline(text, "\r\n") if pairs else text

    ended = [(line.removesuffix("\r"), "\r\n" if line.endswith("\r") else "\n") for line in old.split("\n")]
    lines = to_unix(text).split("\n")
    ends = list[str]()
    matcher = SequenceMatcher(None, [line for line, _ in ended], lines, autojunk=False)

    for _, start, end, first, last in matcher.get_opcodes():
        ends += [ended[max(0, min(start + at, end - 1))][1] for at in range(last - first)]

    return "".join(map(add, lines, [*ends[:-1], ""]))


def count_lines(text: str) -> int:
    """Lines as an editor counts them: the last one counts with or without its line end, an empty text has none."""
    return text.count("\n") + (not text.endswith("\n") if text else 0)


def unstorable(text: str, field: str) -> str:
    """Return why `text`, given as the argument `field`, cannot be stored as UTF-8 text; "" if it can."""
    match = _UNSTORABLE.search(text)
    if match is None:
        return ""

    line = text.count("\n", 0, match.start()) + 1
    return (
        f"{field} holds the character U+{ord(match[0]):04X} in line {line}, which no text file can hold; leave it out."
    )


def text_of(data: bytes) -> str | None:
    """Return the text that these bytes are, None if they are binary."""
    file = decode_text(data)
    return file.text if file else None


def escaped_name(name: str) -> str:
    """Return a file name, which may have bytes that are not UTF-8, as a text that can be stored."""
    return name.encode(errors="backslashreplace").decode()
