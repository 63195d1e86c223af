"""Comparison of texts with committed files, which `--update-snapshots` writes."""

import difflib
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.architecture.product import ROOT

OPTION = "--update-snapshots"


@dataclass(frozen=True)
class Snapshots:
    """Compares texts with their files, or writes the files if `update` is set."""

    update: bool = False

    def check(self, path: Path, actual: str) -> None:
        """Fail with a unified diff if the content of the file is not exactly `actual`, which ends with a line break."""
        expected = path.read_text(encoding="utf-8") if path.exists() else ""
        if actual == expected:
            return

        if self.update:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(actual, encoding="utf-8")
            return

        name = _name(path)
        lines = difflib.unified_diff(
            expected.splitlines(), actual.splitlines(), f"{name} (committed)", f"{name} (now)", lineterm=""
        )
        command = f'make test ARGS="{_name(path.parent)} {OPTION}"'
        difference = "\n".join(lines)
        pytest.fail(f"{difference}\n\nReview the difference. If it is intended, run: {command}", pytrace=False)


def _name(path: Path) -> str:
    """The path relative to the repository, or the absolute path of a file outside."""
    if path.is_relative_to(ROOT):
        return path.relative_to(ROOT).as_posix()
    return str(path)
