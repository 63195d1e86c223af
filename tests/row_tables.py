"""Tables of cases that count as one test: every row is tried, and all that fail are told.

An item of pytest costs three milliseconds and many rows cost microseconds. A row begins in a folder of its own: the
fixtures `tmp_path` and `bench` are other ones for each.
"""

import inspect
from collections.abc import Callable, Iterable
from functools import wraps
from pathlib import Path
from typing import Any

Test = Callable[..., None]


def every_row(names: str, rows: Iterable[Any]) -> Callable[[Test], Test]:
    """Give each row to the test, as `pytest.mark.parametrize` does, but in one item."""
    fields = [name.strip() for name in names.split(",")]
    table = [row if len(fields) > 1 else (row,) for row in rows]
    return lambda test: _tried_with(test, fields, table)


def rows(*table: Any) -> Callable[[Test], Test]:
    """Give each row to the test: a tuple fills its first parameters, anything else the first one."""
    tuples = [row if type(row) is tuple else (row,) for row in table]
    return lambda test: _tried_with(test, [*inspect.signature(test).parameters][: len(tuples[0])], tuples)


def _tried_with(test: Test, fields: list[str], table: list[Any]) -> Test:
    assert table, "the table has no rows"

    @wraps(test)
    def try_all(**fixtures: Any) -> None:
        failures: list[Exception] = []
        for number, row in enumerate(table):
            renewed = {name: _renewed(name, fixture, number) for name, fixture in fixtures.items()}
            try:
                test(**renewed, **dict(zip(fields, row, strict=True)))
            except Exception as error:  # noqa: BLE001 - told below, with its row
                error.add_note(f"row {number}: {row!r:.2000}")
                failures.append(error)
        if failures:
            raise ExceptionGroup(f"{len(failures)} of {len(table)} rows fail", failures)

    signature = inspect.signature(test)
    needed = [parameter for parameter in signature.parameters.values() if parameter.name not in fields]
    vars(try_all)["__signature__"] = signature.replace(parameters=needed)
    return try_all


def _renewed(name: str, fixture: Any, number: int) -> Any:
    if name == "tmp_path":
        folder: Path = fixture / f"row{number}"
        folder.mkdir()
        return folder
    renew = getattr(fixture, "renewed", None)
    return fixture if renew is None else renew(number)
