"""Tables of cases that count as one test: an item costs three milliseconds, and many rows cost microseconds."""

from collections.abc import Callable
from functools import wraps
from inspect import signature
from typing import Any

Test = Callable[..., None]


def rows(*table: Any) -> Callable[[Test], Test]:
    """Call a test with each row of `table` and tell all rows that fail.

    A tuple is spread over the first parameters of the test, anything else is the first one. Fixtures come after them.
    """
    assert table
    every = [row if type(row) is tuple else (row,) for row in table]

    def checked(test: Test) -> Test:
        @wraps(test)
        def check_all(**fixtures: Any) -> None:
            failures = []
            for row in every:
                try:
                    test(**dict(zip(names, row, strict=True)), **fixtures)
                except Exception as error:  # noqa: BLE001 - the other rows are checked all the same
                    error.add_note(f"row: {row!r:.2000}")
                    failures.append(error)
            if failures:
                raise ExceptionGroup(f"{len(failures)} of {len(every)} rows", failures)

        parameters = list(signature(test).parameters.values())
        names = [parameter.name for parameter in parameters[: len(every[0])]]
        check_all.__signature__ = signature(test).replace(parameters=parameters[len(names) :])  # type: ignore[attr-defined]
        return check_all

    return checked
