"""The size of a run's database: after turns of 2 x 1 kB, and after one turn of edits with diffs of 2 kB."""

import os
import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from langgraph.checkpoint.sqlite import SqliteSaver

from mendgraph.graph.machine.serializer import serializer
from mendgraph.graph.persistence.store import Store
from mendgraph.nodes.workspace.store.run_folder import DATA_DIR_VARIABLE
from tests.surfaces.store.growth import Growth, edit, talk, with_add_messages

EDITS = 100


def database_growth(turns: int, edits: int = EDITS) -> dict[str, Growth]:
    """Return the sizes under durability "sync", also those with LangGraph's own channel and saver."""
    growths: dict[str, Growth] = {}

    with tempfile.TemporaryDirectory() as directory:
        os.environ[DATA_DIR_VARIABLE] = os.path.join(directory, "data")

        root = _make_root(directory, "turns")
        with closing(Store(str(root))) as store:
            growths[f"{turns} turns"] = talk(store, root, turns)

        root = _make_root(directory, "edits")
        with closing(Store(str(root))) as store:
            growths[f"{edits} edits"] = edit(store, root, edits)

        root = _make_root(directory, "plain")
        database = os.path.join(directory, "plain.sqlite")
        with closing(sqlite3.connect(database, check_same_thread=False)) as connection:
            plain: Any = SimpleNamespace(saver=SqliteSaver(connection, serde=serializer()))
            growths[f"{turns} turns with add_messages"] = talk(plain, root, turns, with_add_messages)

    return growths


def _make_root(directory: str, name: str) -> Path:
    root = Path(directory, name)
    root.mkdir()
    return root
