"""Cassette files on disk: read with clear errors, written whole or not at all, listed."""

import os
from contextlib import suppress
from secrets import token_hex
from typing import Final

from graph.cassettes.cassette_file import MOST_BYTES, CassetteFile, decode, parse, render
from graph.cassettes.naming import SUFFIX
from nodes.execute_tools.environment.user_files import open_regular, read_bytes
from nodes.records import ToolError, ToolErrorCode

_FIRST_WORD: Final = b"recorded_from:"


def read_text(path: str, name: str = "") -> str | ToolError:
    """The text of the cassette file at `path`, which errors call `name`; NOT_FOUND where there is none."""
    name = name or path
    content = read_bytes(path, MOST_BYTES, name)
    if not isinstance(content, ToolError):
        return decode(content, name)
    if content.code is ToolErrorCode.NOT_FOUND:
        return ToolError(code=ToolErrorCode.NOT_FOUND, message=f"there is no cassette {name}")
    return content


def read(path: str, name: str = "") -> CassetteFile | ToolError:
    """The cassette at `path`, which errors call `name`; NOT_FOUND where there is none."""
    text = read_text(path, name)
    return text if isinstance(text, ToolError) else parse(text, name or path)


def write(path: str, cassette: CassetteFile) -> ToolError | None:
    """Put the cassette at `path` in one step; its folder is made. Others see the old file or the whole new one."""
    folder, file_name = os.path.split(os.path.abspath(path))
    draft = os.path.join(folder, f".{file_name[:100]}.{token_hex(8)}.recording")
    try:
        os.makedirs(folder, exist_ok=True)
        try:
            with open(draft, "xb") as file:
                file.write(render(cassette).encode())
            os.replace(draft, path)
        finally:
            with suppress(FileNotFoundError):
                os.unlink(draft)
    except OSError as error:
        reason = error.strerror or type(error).__name__
        return ToolError(code=ToolErrorCode.IO_ERROR, message=f"{path} cannot be written: {reason}")
    return None


def cassettes_below(folder: str) -> list[str]:
    """The paths of all cassette files in `folder` and below, relative to it and with "/", sorted."""
    found = [os.path.join(root, name) for root, _, names in os.walk(folder) for name in names if _is_cassette(name)]
    return sorted(os.path.relpath(path, folder).replace(os.sep, "/") for path in found)


def is_ours(path: str) -> bool:
    """Whether the file begins as our cassettes do: other tools keep theirs in folders of the same name."""
    try:
        with open_regular(path) as file:
            return file.read(len(_FIRST_WORD)) == _FIRST_WORD
    except OSError:
        return False


def _is_cassette(name: str) -> bool:
    return name.endswith(SUFFIX) and not name.startswith(".")
