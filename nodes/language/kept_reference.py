"""How a result that was too large to show, and was kept, is called: `@result/3`.

It is given where a path is expected, and is short, so that the weakest model copies it to the letter. A workspace file
that is really called so is reached as `./@result/3`.
"""

import re
from collections.abc import Sequence
from typing import Final

from nodes.records import ToolError, ToolErrorCode

LARGEST_NUMBER: Final = 999_999
_REFERENCE = re.compile(r"@result/([1-9][0-9]{0,5})")
_SHOWN = 3


def reference_of(number: int) -> str:
    """The reference of the kept result with this number, from 1 to 999,999."""
    return f"@result/{number}"


def number_of(reference: str) -> int | None:
    """The number of the kept result that is meant, or None for what is no reference."""
    found = _REFERENCE.fullmatch(reference)
    return int(found[1]) if found else None


def is_reference(path: str) -> bool:
    """Whether this names a kept result and no file of the workspace. It holds no `..` and can lead nowhere else."""
    return number_of(path) is not None


def only_read(reference: str) -> str:
    """What a tool says that looks at directories and was given a reference."""
    return f'{reference} is a kept result, not a directory: read_file path="{reference}" reads it.'


def unknown_reference(reference: str, numbers: Sequence[int]) -> ToolError:
    """NOT_FOUND; `numbers` are those of the results that were kept, and the latest are named."""
    names = tuple(reference_of(number) for number in sorted(numbers, reverse=True)[:_SHOWN])
    there = f"The latest are {', '.join(names)}." if names else "None was kept in this run: make the call again."
    return ToolError(
        code=ToolErrorCode.NOT_FOUND, message=f"No kept result is called {reference}. {there}", suggestions=names
    )
