"""A saver of either kind, and the rows that another connection finds."""

from contextlib import closing
from pathlib import Path
from typing import Any

from mendgraph.graph.machine.serializer import serializer
from mendgraph.graph.persistence.checkpoint_saver import SqliteStoreSaver
from mendgraph.nodes.workspace.store.database import open_database, open_file, open_postgres, postgres_database


def opened_saver(folder: Path) -> Any:
    """The saver of the workspace with this folder of records; the caller closes it."""
    shared = postgres_database(str(folder))
    if shared is None:
        return SqliteStoreSaver(open_file(str(folder)), str(folder / "store.sqlite"), serializer())
    from mendgraph.graph.persistence.postgres_saver import CHECKPOINTS, PostgresStoreSaver

    open_postgres(CHECKPOINTS)
    return PostgresStoreSaver(shared, serializer())


def found_rows(folder: Path, question: str) -> list[Any]:
    """What another connection to the database finds; `writes` is the table of writes in either."""
    with closing(open_database(str(folder))) as other:
        if postgres_database(str(folder)) is not None:
            question = question.replace(" writes", " checkpoint_writes")
        rows: list[Any] = other.execute(question).fetchall()
    return rows
