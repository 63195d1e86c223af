"""How large the database of a run becomes: in turns of 2 x 1 kB, and in one turn of edits with diffs of 2 kB."""

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
    """The sizes under durability "sync", also with LangGraph's own channel and saver. Nothing is left behind."""
    with tempfile.TemporaryDirectory() as name:
        os.environ[DATA_DIR_VARIABLE] = os.path.join(name, "data")
        roots = [Path(name, each) for each in ("turns", "edits", "plain")]
        for root in roots:
            root.mkdir()
        with closing(Store(str(roots[0]))) as talking, closing(Store(str(roots[1]))) as editing:
            grown = {f"{turns} turns": talk(talking, roots[0], turns), f"{edits} edits": edit(editing, roots[1], edits)}
        with closing(sqlite3.connect(os.path.join(name, "plain.sqlite"), check_same_thread=False)) as connection:
            plain: Any = SimpleNamespace(saver=SqliteSaver(connection, serde=serializer()))
            grown[f"{turns} turns with add_messages"] = talk(plain, roots[2], turns, with_add_messages)
    return grown
