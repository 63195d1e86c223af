"""Writes a store of this version of mendgraph, for the tests of later versions.

    .venv/bin/python -m tests.contract.write_stored_formats

Two runs of the command are played on a scripted endpoint, always in the same folder, as the database holds its name:
one that finishes, and one that is killed after its edit, before the next reply of the model.
"""

import gzip
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

from filelock import FileLock

from tests.contract.stored_formats import CURRENT_NAME, EDITED_FILE, SPENDING, STORE, STORES
from tests.doubles.scripted_server import Calls, Reply, Say, ScriptedServer
from tests.providers.wire import JsonMap

PLACE = Path("/tmp/mendgraph-stored-formats")
"""Where the runs are played. A turn that was cut off goes on only where it began."""

BEFORE = """\
[apple]
price = 3

[pear]
price = 4
"""

FINISHED_TASK = "An apple costs 5."
CUT_OFF_TASK = "A pear costs 6."

_OPTIONS = ("--model", "gpt-contract", "--no-evidence")
_COMMAND = Path(sys.executable).with_name("mendgraph")


def main() -> None:
    """Write the folder of this version, in place of one that is there."""
    with own_place():
        workspace, data, target = PLACE / "workspace", PLACE / "data", STORES / CURRENT_NAME
        workspace.mkdir()
        (workspace / EDITED_FILE).write_text(BEFORE, encoding="utf-8")
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(workspace, target / "before")

        run_id = _play_finished_run()
        _mendgraph("cassette", "from-run", run_id, "--name", "apple", "--output", str(PLACE / "replay"))
        _play_cut_off_run()

        shutil.copytree(workspace, target / "workspace")
        shutil.copytree(PLACE / "replay", target / "replay")
        shutil.copytree(data / "runs", target / "data" / "runs", ignore=shutil.ignore_patterns("run.lock.json"))
        (store,) = (data / "workspaces").glob("*/store.sqlite")
        _pack(store, target / "data" / STORE)
        shutil.copy(store.with_name("run.lock"), (target / "data" / STORE).with_name("run.lock"))
        _pack(data / "spending" / "spending.sqlite", target / "data" / SPENDING)


@contextmanager
def own_place() -> Iterator[Path]:
    """`PLACE`, empty, which one process of this machine has at a time; it is gone afterwards."""
    with FileLock(f"{PLACE}.lock", timeout=300):
        shutil.rmtree(PLACE, ignore_errors=True)
        PLACE.mkdir()
        try:
            yield PLACE
        finally:
            shutil.rmtree(PLACE)


def _play_finished_run() -> str:
    replies = (_read(), _edit("price = 3", "price = 5"), Say("An apple costs 5 now."))
    with ScriptedServer(replies) as server:
        _mendgraph(*_OPTIONS, FINISHED_TASK, base_url=server.base_url)
    (run,) = json.loads(_mendgraph("runs", "--json"))
    return str(run["run_id"])


def _play_cut_off_run() -> None:
    processes: list[subprocess.Popen[str]] = []

    def kill(_: JsonMap) -> Reply:
        processes[0].send_signal(signal.SIGKILL)
        return Say("Nobody reads this.")

    replies: Sequence[Reply | Callable[[JsonMap], Reply]] = (_read(), _edit("price = 4", "price = 6"), kill)
    with ScriptedServer(replies) as server:
        processes.append(_start(*_OPTIONS, CUT_OFF_TASK, base_url=server.base_url))
        assert processes[0].wait() == -signal.SIGKILL


def _read() -> Reply:
    return Calls([("read_file", json.dumps({"path": EDITED_FILE}))])


def _edit(old: str, new: str) -> Reply:
    return Calls([("edit_file", json.dumps({"path": EDITED_FILE, "old_str": old, "new_str": new}))])


def _mendgraph(*words: str, base_url: str = "") -> str:
    """What the command writes to standard output; it has to succeed."""
    process = _start(*words, base_url=base_url)
    output, errors = process.communicate()
    assert process.returncode == 0, errors
    return output


def _start(*words: str, base_url: str = "") -> subprocess.Popen[str]:
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(PLACE / "home"),
        "MENDGRAPH_DATA_DIR": str(PLACE / "data"),
        "OPENAI_BASE_URL": base_url,
        "OPENAI_API_KEY": "none",
    }
    command = [str(_COMMAND), "--root", str(PLACE / "workspace"), *words]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def _pack(database: Path, target: Path) -> None:
    """Put the whole database, with what is still in its log, into one compressed file."""
    with closing(sqlite3.connect(database)) as connection:
        (busy, *_) = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        assert not busy
    assert not Path(f"{database}-wal").exists()
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(gzip.compress(database.read_bytes(), mtime=0))


if __name__ == "__main__":
    main()
