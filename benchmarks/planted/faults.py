"""The faults that are planted: `faults.toml`."""

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

FILE: Final = Path(__file__).with_name("faults.toml")


@dataclass(frozen=True)
class Fault:
    """A change of one product file that breaks a behaviour, and the test file that must fail because of it.

    `before` occurs exactly once in `file` and becomes `after`. `name` states what is broken.
    """

    name: str
    file: str
    before: str
    after: str
    test: str

    def plant(self, text: str) -> str:
        """Return the text of `file` with the fault in it.

        Raises:
            ValueError: `before` does not occur exactly once.
        """
        count = text.count(self.before)
        if count != 1:
            raise ValueError(f"{self.name}: `before` occurs {count} times in {self.file}")
        return text.replace(self.before, self.after)


def read_faults(file: Path = FILE) -> list[Fault]:
    """Read the list of faults."""
    tables = tomllib.loads(file.read_text(encoding="utf-8"))["fault"]
    return [Fault(**table) for table in tables]


def select_faults(faults: Sequence[Fault], words: Sequence[str]) -> list[Fault]:
    """Return the faults whose name, file or test contains one of the words; all of them if there is no word."""
    if not words:
        return list(faults)
    selected = []
    for fault in faults:
        text = f"{fault.name}\n{fault.file}\n{fault.test}"
        if any(word in text for word in words):
            selected.append(fault)
    return selected
