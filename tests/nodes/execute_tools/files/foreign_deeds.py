"""What somebody else may do to a file between a kill and the recovery. `outside` is a folder beside the workspace."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path


def write(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"theirs")


def replace(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    (path.parent / "theirs").write_bytes(b"theirs")
    os.rename(path.parent / "theirs", path)


def take(path: Path) -> None:
    path.unlink(missing_ok=True)


def link(path: Path) -> None:
    take(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(_outside(path) / path.name)


def folder(path: Path) -> None:
    take(path)
    path.mkdir(parents=True)


def link_above(path: Path) -> None:
    shutil.rmtree(path.parent, ignore_errors=True)
    path.parent.symlink_to(_outside(path))


def file_above(path: Path) -> None:
    shutil.rmtree(path.parent, ignore_errors=True)
    path.parent.write_bytes(b"theirs")


def take_above(path: Path) -> None:
    shutil.rmtree(path.parent, ignore_errors=True)


def _outside(path: Path) -> Path:
    return next(above / "outside" for above in path.parents if (above / "outside").is_dir())


AT_A_PATH: list[Callable[[Path], None]] = [write, replace, take, link, folder]
ABOVE_A_PATH: list[Callable[[Path], None]] = [link_above, file_above, take_above]
