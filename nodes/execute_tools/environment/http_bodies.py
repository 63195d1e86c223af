"""What an answer's body says: unpacked piece by piece within a bound, and read as text if it is one."""

import codecs
import re
import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import Final, NamedTuple

ENCODINGS: Final = frozenset({"", "identity", "gzip", "x-gzip"})
"""What may be around a body, once: more layers could keep a reader busy without giving it a byte."""
UNKNOWN_TYPE: Final = "application/octet-stream"
"""What a body is that says nothing of itself. Source: RFC 9110, section 8.3."""

_PIECE_BYTES: Final = 1 << 16
_SNIFFED_BYTES: Final = 8_000
_GZIP: Final = zlib.MAX_WBITS | 16
_TYPE: Final = re.compile(
    r"\s*([a-z0-9!#$&^_.+-]{1,100}/[a-z0-9!#$&^_.+-]{1,100})\s*(?:;.*)?", re.IGNORECASE | re.DOTALL
)
_CHARSET: Final = re.compile(r";\s*charset\s*=\s*[\"']?([a-z0-9_.:-]{1,40})", re.IGNORECASE)
_TEXT_TYPES: Final = frozenset(
    f"application/{name}"
    for name in ("json", "xml", "javascript", "x-javascript", "x-ndjson", "yaml", "x-yaml", "toml", "x-sh")
)
_CHARSETS: Final = ("utf-8", "utf-16", "utf-32", "ascii", "iso8859-", "cp125", "cp866", "koi8-", "mac-")
_ASIAN_CHARSETS: Final = ("shift_jis", "euc_", "gb", "big5", "cp932", "cp949", "cp950")
"""Beginnings of codecs that read in linear time and give text; Python has others, such as punycode and zip."""
_MARKS: Final = ((codecs.BOM_UTF8, "utf-8-sig"), (codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16"))


class Body(NamedTuple):
    """The bytes that were kept; `cut` says that there are more."""

    data: bytes
    cut: bool


def media_type(content_type: str) -> str:
    """`text/html` of `Text/HTML; charset=utf-8`; what cannot be read is `application/octet-stream`."""
    match = _TYPE.fullmatch(content_type)
    return match[1].lower() if match else UNKNOWN_TYPE


def is_text(kind: str) -> bool:
    """Whether a body of this media type is read: text, JSON, XML and their kin."""
    return kind.startswith("text/") or kind in _TEXT_TYPES or kind.endswith(("+json", "+xml", "+yaml"))


def read_body(chunks: Iterable[bytes], encoding: str, most: int, check: Callable[[], object]) -> Body:
    """The first `most` bytes of the body after decompression; no more is ever held than a piece beyond that.

    `check` is called at each piece, and may raise to end it.

    Raises:
        ValueError: what came is not the compressed data that it should be, or breaks off.
    """
    data = bytearray()
    for piece in _unzipped(chunks) if encoding in {"gzip", "x-gzip"} else chunks:
        check()
        data += piece
        if len(data) > most:
            return Body(bytes(data[:most]), cut=True)
    return Body(bytes(data), cut=False)


def decode_text(body: Body, content_type: str) -> str | None:
    """The body in its charset (UTF-8 unless it says otherwise), with U+FFFD for what does not fit; None if binary."""
    codec = next((codec for mark, codec in _MARKS if body.data.startswith(mark)), "") or _charset(content_type)
    if b"\x00" in body.data[:_SNIFFED_BYTES] and not codec.startswith(("utf-16", "utf-32")):
        return None
    return codecs.getincrementaldecoder(codec)(errors="replace").decode(body.data, final=not body.cut)


def _charset(content_type: str) -> str:
    match = _CHARSET.search(content_type)
    try:
        name = codecs.lookup(match[1]).name if match else "utf-8"
    except LookupError:
        return "utf-8"
    if name in {"utf-16", "utf-32"}:
        return f"{name}-le"  # Python insists on a byte order mark, and where there is one it was seen already
    return name if name.startswith(_CHARSETS + _ASIAN_CHARSETS) else "utf-8"


def _unzipped(chunks: Iterable[bytes]) -> Iterator[bytes]:
    unpacker = zlib.decompressobj(_GZIP)
    begun = False
    for chunk in chunks:
        begun = begun or bool(chunk)
        rest = chunk
        while rest and not unpacker.eof:
            try:
                yield unpacker.decompress(rest, _PIECE_BYTES)
            except zlib.error as error:
                raise ValueError(f"its gzip data is damaged ({error})") from error
            rest = unpacker.unconsumed_tail
    if begun and not unpacker.eof:
        raise ValueError("its gzip data breaks off")
