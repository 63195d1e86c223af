"""Write the files of a workspace, read them, and compare them."""

from collections.abc import Mapping
from pathlib import Path


def write_files(folder: Path, files: Mapping[str, str]) -> None:
    """Write text files; the keys are paths relative to `folder`."""
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def read_files(folder: Path) -> dict[str, str]:
    """Read all files below `folder`; the keys are paths relative to it."""
    return {
        path.relative_to(folder).as_posix(): path.read_text(encoding="utf-8")
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def changed_files(folder: Path, before: Mapping[str, str]) -> dict[str, str]:
    """Return the files whose text differs from `before`; a deleted file has an empty text."""
    now = read_files(folder)
    return {name: now.get(name, "") for name in {*before, *now} if now.get(name) != before.get(name)}
