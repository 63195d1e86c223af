"""Converts between the text that tools see and the bytes of a file, with its BOM and line ends."""

import re
from difflib import SequenceMatcher
from operator import add
from typing import Final, NamedTuple

BOM = "\ufeff"
_UTF_16_BOMS = (b"\xff\xfe", b"\xfe\xff")
SNIFFED_BYTES = 8192
"""Bytes of a file that are searched for NUL, as in binary files. Source: git's buffer_is_binary (8000 bytes)."""
LARGEST_TEXT: Final = 200_000
"""Characters of a text that is judged as code."""

_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")


class TextForm(NamedTuple):
    """The form of a text file: whether it has a BOM, and its most frequent line end."""

    has_bom: bool = False
    newline: str = "\n"


class TextFile(NamedTuple):
    """Decoded text with its line ends, without the BOM, and the form of the file."""

    text: str
    form: TextForm


def decode_text(data: bytes) -> TextFile | None:
    """Decode a text; None for binary data (NUL near the start, or not UTF-8)."""
    if b"\x00" in data[:SNIFFED_BYTES]:
        return None

    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        return None

    has_bom = text.startswith(BOM)
    return TextFile(text.removeprefix(BOM), TextForm(has_bom, dominant_newline(text)))


def why_not_text(data: bytes) -> str:
    """Describe data that `decode_text` refuses, such as `a binary file of 3 bytes`."""
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
    """Encode a text with its line ends, and with a BOM if the file had one."""
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
    r"""Return the text with the line ends of `old`, which it replaces; unchanged if that has only "\n".

    If `old` has both, an unchanged line keeps its own, and a new one gets that of the line that it replaces or follows.
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
    """Count the lines, also a last one without a line end."""
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
    """Decode a text; None for binary data."""
    file = decode_text(data)
    return file.text if file else None


def escaped_name(name: str) -> str:
    """Return a file name, which may have bytes that are not UTF-8, as a text that can be stored."""
    return name.encode(errors="backslashreplace").decode()
