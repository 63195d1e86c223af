"""A case: an input that a target handled wrongly, as small as it can quickly be made, in a file that names both."""

import hashlib
import json
from collections.abc import Callable, Iterator
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


def plain(value: Any) -> Any:
    """The input as a file would give it back."""
    return json.loads(json.dumps(value))


def smaller(value: Any, fails: Callable[[Any], bool]) -> Any:
    """The input with as much cut out of its texts as `fails` allows, which also says when it has been enough."""
    size = _longest(value) // 2
    while size:
        shorter = next((each for each in _shortened(value, size) if fails(each)), None)
        if shorter is None:
            size //= 2
        else:
            value, size = shorter, min(size, _longest(shorter))
    return value


def _longest(value: Any) -> int:
    if isinstance(value, list):
        return max(map(_longest, value), default=0)
    return len(value) if isinstance(value, str) else 0


def _shortened(value: Any, size: int) -> Iterator[Any]:
    """The input with one stretch of this size missing in one of its texts, wherever that may be."""
    if isinstance(value, str):
        for at in range(0, len(value) - size + 1, size):
            yield value[:at] + value[at + size :]
    elif isinstance(value, list):
        for index, each in enumerate(value):
            for shorter in _shortened(each, size):
                yield [*value[:index], shorter, *value[index + 1 :]]
