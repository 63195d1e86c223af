"""A case: an input that a target handled wrongly, as small as it can quickly be made, in a file that names both."""

import hashlib
import json
from pathlib import Path
from typing import Any, Final, NamedTuple

REGRESSIONS: Final = Path(__file__).with_name("regressions")
"""One file for each case that was found and repaired; `make test` plays them all."""


class Case(NamedTuple):
    """The name of the target, the input, and the error that it led to."""

    target: str
    input: Any
    error: str

    def save(self, folder: Path) -> Path:
        """Write the case into this folder, under a name that its input gives it."""
        folder.mkdir(parents=True, exist_ok=True)
        document = json.dumps(self._asdict(), indent=2) + "\n"
        digest = hashlib.sha256(json.dumps(self.input).encode()).hexdigest()[:10]
        path = folder / f"{self.target}-{digest}.json"
        path.write_text(document, encoding="utf-8")
        return path


def load(path: Path) -> Case:
    """Read a case.

    Raises:
        OSError, ValueError, TypeError: the file cannot be read, or holds no case.
    """
    return Case(**json.loads(path.read_text(encoding="utf-8")))
