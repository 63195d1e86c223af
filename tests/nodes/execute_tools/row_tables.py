"""A table of cases in one test: every row is tried, and all that fail are told."""

import functools
import inspect
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

Test = Callable[..., None]


def every_row(names: str, rows: Iterable[Any]) -> Callable[[Test], Test]:
    """Give each row to the test, as `pytest.mark.parametrize` does, but in one item.

    A row begins in a folder of its own: the fixtures `tmp_path` and `bench` are other ones for each.
    """
    fields = [name.strip() for name in names.split(",")]
    table = [row if len(fields) > 1 else (row,) for row in rows]
    assert table, "the table has no rows"

    def decorated(test: Test) -> Test:
        @functools.wraps(test)
        def try_all(**fixtures: Any) -> None:
            failures = list[Exception]()
            for number, row in enumerate(table):
                place = {name: _renewed(name, fixture, number) for name, fixture in fixtures.items()}
                try:
                    test(**place, **dict(zip(fields, row, strict=True)))
                except Exception as error:  # noqa: BLE001 - told below, with its row
                    error.add_note(f"row {number}: {row!r:.500}")
                    failures.append(error)
            if failures:
                raise ExceptionGroup(f"{len(failures)} of {len(table)} rows fail", failures)

        signature = inspect.signature(test)
        needed = [each for each in signature.parameters.values() if each.name not in fields]
        vars(try_all)["__signature__"] = signature.replace(parameters=needed)
        return try_all

    return decorated


def _renewed(name: str, fixture: Any, number: int) -> Any:
    if name == "tmp_path":
        folder: Path = fixture / f"row{number}"
        folder.mkdir()
        return folder
    renew = getattr(fixture, "renewed", None)
    return fixture if renew is None else renew(number)
