"""The images of a request: read from files, or given as data, and turned into content blocks of its message."""

import os
import re
from collections.abc import Sequence
from typing import Final, TypeAlias
from urllib.parse import unquote, urlsplit

from mendgraph.nodes.language.media import IMAGE_TYPES, MOST_MEDIA_BYTES, image_block
from mendgraph.nodes.records import JsonMap, ToolError, invalid, quoted
from mendgraph.nodes.workspace.store.user_files import read_bytes

Image: TypeAlias = str | os.PathLike[str] | bytes
"""The path of a PNG, JPEG, GIF or WebP file, or its bytes."""

_WORD: Final = re.compile(r"""(?<!\S)[(\[`]*(@?(?:"[^"\n]+"|'[^'\n]+'|(?:\\.|[^\s\\])+))""")
_NAME_OF_IMAGE: Final = re.compile(r"\.(?:png|jpe?g|gif|webp)$", re.IGNORECASE)


def image_blocks(images: Sequence[Image]) -> list[JsonMap] | ToolError:
    """Return the content blocks of these images, or why one of them cannot be shown to a model."""
    blocks: list[JsonMap] = []

    for image in images:
        block = _block_of(image)
        if isinstance(block, ToolError):
            return block

        blocks.append(block)

    return blocks


def image_notes(images: Sequence[Image]) -> list[str]:
    """Return a line for each image, for the record of a request, which holds no images."""
    notes = []
    for image in images:
        name = "" if isinstance(image, bytes) else f" {quoted(os.fspath(image))}"
        notes.append(f"[image{name}]")

    return notes


def _block_of(image: Image) -> JsonMap | ToolError:
    data: bytes | ToolError
    if isinstance(image, bytes):
        name = f"data of {len(image):,} bytes"
        data = image
    else:
        name = os.fspath(image)
        data = read_bytes(name, MOST_MEDIA_BYTES)
        if isinstance(data, ToolError):
            return data

    block = image_block(name, data)
    if block is None:
        kinds = ", ".join(kind.removeprefix("image/").upper() for kind in IMAGE_TYPES)
        return invalid(f"{quoted(name)} is not an image that models accept. They accept {kinds}.")

    return block


def images_in(text: str, root: str) -> list[str]:
    """Return the image files that a person names in a request: `@picture.png`, relative to `root`, or a pasted path.

    A pasted path is absolute, begins with `~/`, or is a `file://` URL. Names of files that do not exist are text.
    """
    paths: list[str] = []

    for word in _WORD.findall(text):
        path = _path_of(word, root)
        if path and path not in paths and os.path.isfile(path):
            paths.append(path)

    return paths


def _path_of(word: str, root: str) -> str:
    """Return the absolute path of an image that a word names, or ""."""
    name = word.removeprefix("@").strip("\"'").rstrip("\"'`)],;:.!?")
    if not _NAME_OF_IMAGE.search(name):
        return ""

    if name.startswith("file://"):
        return unquote(urlsplit(name).path)

    name = os.path.expanduser(re.sub(r"\\(.)", r"\1", name))
    if word.startswith("@") or os.path.isabs(name):
        return os.path.join(root, name)

    return ""
