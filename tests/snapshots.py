"""Files of text that tests compare exactly, and that one option of pytest writes."""

import difflib
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.architecture.product import ROOT

OPTION = "--update-snapshots"


@dataclass(frozen=True)
class Snapshots:
    """Compares texts with their files; with `update` it writes the files instead."""

    update: bool = False

    def check(self, path: Path, actual: str) -> None:
        """Fail with a unified diff where the file does not hold exactly this text, which ends with a line break."""
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
        pytest.fail(f"{difference}\n\nReview the difference. Where it is intended, run: {command}", pytrace=False)


def _name(path: Path) -> str:
    """The path from the root of the repository, where it lies in there."""
    if path.is_relative_to(ROOT):
        return path.relative_to(ROOT).as_posix()
    return str(path)
