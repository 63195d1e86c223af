"""Parametrization in which all rows are one test; pytest reports each failing row as a subtest.

A pytest item takes three milliseconds, and many rows take microseconds. The fixtures `tmp_path` and `bench` are new for
each row.
"""

import inspect
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import pytest

Test = Callable[..., None]


def rows(*table: Any) -> Callable[[Test], Test]:
    """Call the test with each row: a tuple is passed as the first parameters, another value as the first one.

    With two decorators the test is called with each combination of their rows.
    """
    table_rows = [row if type(row) is tuple else (row,) for row in table]
    assert len({len(row) for row in table_rows}) == 1, "a table has at least one row, and its rows have one length"
    return lambda test: _test_of_table(test, table_rows)


def _test_of_table(test: Test, table: list[tuple[Any, ...]]) -> Test:
    fields = [*inspect.signature(test).parameters][: len(table[0])]
    if hasattr(test, "row_table"):
        test, inner_fields, inner_table = vars(test)["row_table"]
        fields, table = [*fields, *inner_fields], [(*row, *inner) for row in table for inner in inner_table]

    @wraps(test)
    def try_all(subtests: pytest.Subtests, **fixtures: Any) -> None:
        for number, row in enumerate(table):
            renewed = {name: _renewed(name, fixture, number) for name, fixture in fixtures.items()}
            values = dict(zip(fields, row, strict=True))
            try:
                test(**renewed, **values)
            except Exception:
                with subtests.test(f"row {number}", **values):
                    raise

    signature = inspect.signature(test)
    needed = [parameter for parameter in signature.parameters.values() if parameter.name not in fields]
    subtests = inspect.Parameter("subtests", inspect.Parameter.KEYWORD_ONLY)
    vars(try_all)["__signature__"] = signature.replace(parameters=[*needed, subtests])
    vars(try_all)["row_table"] = (test, fields, table)
    return try_all


def _renewed(name: str, fixture: Any, number: int) -> Any:
    if name == "tmp_path":
        folder: Path = fixture / f"row{number}"
        folder.mkdir()
        return folder
    renew = getattr(fixture, "renewed", None)
    return fixture if renew is None else renew(number)
