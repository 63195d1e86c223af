"""Stores that cannot be used, of either kind."""

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
    """Whoever opens the store of this workspace next cannot use it; what the reason names.

    `damage` is "torn", "newer" or "foreign"; a shared store is not there any more instead of torn.
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


def _torn(path: Path) -> None:
    path.write_bytes(b"not a database at all" * 400)
    for suffix in ("-wal", "-shm"):
        with suppress(FileNotFoundError):
            Path(f"{path}{suffix}").unlink()


def _written(place: slice, what: bytes) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        data = bytearray(path.read_bytes())
        _torn(path)
        data[place] = what
        path.write_bytes(data)

    return write


_FILES: Final[Mapping[str, Callable[[Path], None]]] = {
    "newer": _written(slice(60, 64), (99).to_bytes(4)),
    "foreign": _written(slice(68, 72), b"else"),
    "torn": _torn,
}
"""Source: sqlite.org/fileformat.html, the header."""
