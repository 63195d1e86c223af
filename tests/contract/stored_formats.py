"""The folders of `stores/`: what one holds, how one is called, and how one becomes a workspace with its runs.

before/       the workspace before its first run
workspace/    the workspace as its runs have left it
data/         what MENDGRAPH_DATA_DIR held: databases as .gz, with `workspaces/store.sqlite.gz` the workspace's own
replay/       a test with its cassette, as `mendgraph cassette from-run` writes it
"""

import gzip
import shutil
from dataclasses import dataclass
from pathlib import Path

from mendgraph.graph import cli
from mendgraph.graph.cassettes.cassette_file import VERSION as CASSETTE_FORMAT
from mendgraph.graph.spending.database import FORMAT as SPENDING_FORMAT
from mendgraph.nodes.workspace.store.database_schema import FORMAT as STORE_FORMAT

STORES = Path(__file__).with_name("stores")

CURRENT_NAME = f"store-{STORE_FORMAT}_spending-{SPENDING_FORMAT}_cassette-{CASSETTE_FORMAT}"
"""The folder that holds what this version writes."""

STORE = "workspaces/store.sqlite.gz"
SPENDING = "spending/spending.sqlite.gz"

EDITED_FILE = "prices.toml"

_VERSION_BYTES = slice(60, 64)
"""Where a database file has its `user_version`. Source: sqlite.org/fileformat2.html, "The Database Header"."""


@dataclass(frozen=True)
class StoredFormats:
    """One folder of `stores/`."""

    folder: Path

    @property
    def store_format(self) -> int:
        return format_of(self._database(STORE))

    @property
    def spending_format(self) -> int:
        return format_of(self._database(SPENDING))

    def place(self, place: Path, *, store_format: int = 0, spending_format: int = 0) -> None:
        """Put the workspace and its data into `place`, as after a move of the workspace.

        MENDGRAPH_DATA_DIR already names `place / "data"`. A format that is given takes the place of the real one.
        """
        workspace, data = place / "workspace", place / "data"
        shutil.copytree(self.folder / "workspace", workspace)
        shutil.copytree(self.folder / "data" / "runs", data / "runs")
        (data / "spending").mkdir()
        spending = with_format(self._database(SPENDING), spending_format or self.spending_format)
        (data / "spending" / "spending.sqlite").write_bytes(spending)

        # docs/recovery.md: the first command makes the folder of the new place, which then gets the database.
        assert cli.main(["runs", "--root", str(workspace)]) == 0
        (folder,) = (data / "workspaces").iterdir()
        (folder / "store.sqlite").write_bytes(with_format(self._database(STORE), store_format or self.store_format))
        shutil.copy((self.folder / "data" / STORE).with_name("run.lock"), folder)

    def _database(self, name: str) -> bytes:
        return gzip.decompress((self.folder / "data" / name).read_bytes())


def format_of(database: bytes) -> int:
    """The number of the format in the header of a database file."""
    return int.from_bytes(database[_VERSION_BYTES])


def with_format(database: bytes, number: int) -> bytes:
    return database[: _VERSION_BYTES.start] + number.to_bytes(4) + database[_VERSION_BYTES.stop :]


def stored_formats() -> list[StoredFormats]:
    return [StoredFormats(folder) for folder in sorted(STORES.iterdir())]
