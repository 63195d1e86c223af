"""Plays for the tests of the machinery: writers that are known to be safe, or known not to be."""

import errno
import os

OLD, NEW = "old " * 3000, "new " * 4000


def write_naively(folder: str) -> str:
    with open(f"{folder}/file", "w", encoding="utf-8") as file:
        file.write(NEW)
    return "written"


def replace(folder: str) -> str:
    with open(f"{folder}/file.tmp", "w", encoding="utf-8") as file:
        file.write(NEW)
        file.flush()
        os.fsync(file.fileno())
    os.replace(f"{folder}/file.tmp", f"{folder}/file")
    handle = os.open(folder, os.O_RDONLY)
    os.fsync(handle)
    os.close(handle)
    return "written"


def replace_or_say(folder: str) -> str:
    """As `replace`; the error's name instead of an error."""
    try:
        return replace(folder)
    except OSError as error:
        return errno.errorcode[error.errno or 0]
