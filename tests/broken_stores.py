"""Damage to stores of runs: SQLite files and PostgreSQL databases."""

import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

import pytest

from mendgraph.nodes.workspace.store.database import FILE_NAME, STORE_URL_VARIABLE

NOWHERE: Final = "postgresql://somebody@127.0.0.1:1/nowhere"

_SHARED: Final = {
    "newer": "UPDATE mendgraph.formats SET format = 99 WHERE part = 'store'",
    "foreign": "DROP TABLE mendgraph.formats",
}


def make_unusable(folder: str, patch: pytest.MonkeyPatch, damage: str = "torn") -> str:
    """Damage the store of a workspace so that it cannot be opened; returns what the error message names.

    Args:
        folder: the folder of the store.
        patch: changes the URL of a PostgreSQL store.
        damage: "torn" (no database, or no server), "newer" (a later format) or "foreign" (not our tables).
    """
    if not os.environ.get(STORE_URL_VARIABLE):
        path = Path(folder, FILE_NAME)
        _FILES[damage](path)
        return str(path)
    from mendgraph.nodes.workspace.store.postgres import close_postgres

    close_postgres()
    if damage == "torn":
        patch.setenv(STORE_URL_VARIABLE, NOWHERE)
        return "The shared store 'nowhere' on 127.0.0.1:1 cannot be used"
    import psycopg

    with psycopg.connect(os.environ[STORE_URL_VARIABLE], autocommit=True) as connection:
        connection.execute(_SHARED[damage].encode())
        return str(connection.info.dbname)


def _corrupt(path: Path) -> None:
    path.write_bytes(b"not a database at all" * 400)
    for suffix in ("-wal", "-shm"):
        with suppress(FileNotFoundError):
            Path(f"{path}{suffix}").unlink()


def _overwritten(place: slice, what: bytes) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        data = bytearray(path.read_bytes())
        _corrupt(path)
        data[place] = what
        path.write_bytes(data)

    return write


_FILES: Final[Mapping[str, Callable[[Path], None]]] = {
    "newer": _overwritten(slice(60, 64), (99).to_bytes(4)),
    "foreign": _overwritten(slice(68, 72), b"else"),
    "torn": _corrupt,
}
"""Source: sqlite.org/fileformat.html, the header."""
