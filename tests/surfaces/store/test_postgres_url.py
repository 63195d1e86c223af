"""Which PostgreSQL database holds the store, and which name a workspace has there."""

import errno
import os
import stat
import sys
from pathlib import Path

import psycopg
import pytest

from mendgraph.nodes.records import ToolError, ToolErrorCode
from mendgraph.nodes.workspace.store.database import LostError, StoreError, postgres_url, read_url
from mendgraph.nodes.workspace.store.postgres import PostgresPool
from mendgraph.nodes.workspace.store.run_folder import give_workspace_name, known_workspace_name, workspace_name
from tests.doubles.system_calls import failing

VARIABLE = "MENDGRAPH_STORE_URL"
WORD = "-".join(("plum", "51@", "orchard"))


NAMES = {
    "postgresql://u@db.example:5433/runs": "'runs' on db.example:5433",
    "postgres://u:w@db.example/runs": "'runs' on db.example",
    "postgresql:///runs?host=%2Frun%2Fpg": "'runs' on /run/pg",
    "postgresql://u@/?dbname=runs": "'runs' on this machine",
    "postgresql://somebody@h": "'somebody' on h",
    "postgresql://h": "'?' on h",
    "postgresql://u@h/a%0Ab\x1b[2J": "'a\\nb\\x1b[2J' on h",
}
QUOTED = WORD.replace("@", "%40")


def test_store_is_named_by_its_database_and_host() -> None:
    assert {url: read_url(url).name for url in NAMES} == NAMES


def test_password_is_not_in_any_shown_form_of_a_url() -> None:
    for url in (
        f"postgresql://u:{QUOTED}@h/runs",
        f"postgresql://h/runs?user=u&password={QUOTED}",
        f"postgresql://h/runs?sslpassword={QUOTED}",
        f"postgresql://{QUOTED}:{QUOTED}@h",
    ):
        parsed = read_url(url)
        for text in (parsed.name, repr(parsed), parsed.clean(f"failed for {WORD} and {QUOTED}")):
            assert (WORD in text, QUOTED in text) == (False, False)
        assert parsed.clean("one\n\ttwo\x1b[2J three") == "one two [2J three"


def test_invalid_url_is_refused_without_quoting_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for url in ("mysql://u:{}@h/d", "{}", "host=h password={}", "sqlite:///{}", "://{}"):
        monkeypatch.setenv(VARIABLE, url.format(WORD))
        with pytest.raises(StoreError) as caught:
            postgres_url()
        assert str(caught.value) == (
            "MENDGRAPH_STORE_URL is not a PostgreSQL URL: write"
            " postgresql://user:password@host:5432/database, or remove the variable."
        )
    with pytest.raises(StoreError) as caught:
        read_url(f"postgresql://u:p@ss/{WORD}:x@h:port/d")
    assert "cannot be read: write postgresql://" in str(caught.value)
    assert WORD not in str(caught.value)


def test_without_the_extra_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "postgresql://h/d")
    monkeypatch.setitem(sys.modules, "psycopg", None)
    read_url.cache_clear()
    with pytest.raises(StoreError) as caught:
        postgres_url()
    assert str(caught.value) == (
        "MENDGRAPH_STORE_URL names a PostgreSQL database, which needs the extra `postgres`: "
        "run `uv sync --inexact --extra postgres`."
    )


REASONS: list[tuple[str, str, bool]] = [
    ("28P01", "it refuses this user: put a valid user and password into", False),
    ("3D000", "there is no such database: create it with `createdb`, or name another one", False),
    ("42501", "its user may not do this: GRANT CREATE ON DATABASE", False),
    ("42P01", "no such table: somebody has changed its tables. Restore a backup", False),
    ("53100", "its disk is full. Free space, then try again", False),
    ("53300", "it has no connection left: raise its max_connections, or run fewer processes", False),
    ("57P01", "the server was stopped, or is starting: try again when it runs", True),
    ("25006", "it is read-only: name its primary server in MENDGRAPH_STORE_URL", False),
    ("25P03", "no such table (SQLSTATE 25P03)", True),
    ("08006", "no such table (SQLSTATE 08006)", True),
    ("22023", "no such table (SQLSTATE 22023)", False),
    ("MG001", "This process lost its lock on the workspace", False),
]
LETS_NOBODY_IN = {
    "FATAL: sorry, too many clients already": "it has no connection left",
    "FATAL: remaining connection slots are reserved": "it has no connection left",
    "connection refused": "it cannot be reached (connection refused). Start it, or correct MENDGRAPH_STORE_URL",
}


def test_server_error_has_its_reason_and_remedy() -> None:
    connections = PostgresPool(read_url("postgresql://u@h/runs"))
    for state, reason, is_lost in REASONS:
        kind = type("ServerError", (psycopg.Error,), {"sqlstate": state})
        refused = connections.refused(kind("no such table"))
        assert reason in str(refused)
        assert isinstance(refused, LostError) is is_lost, state
    for words, reason in LETS_NOBODY_IN.items():
        assert reason in str(connections.refused(psycopg.OperationalError(words)))


def refusal(result: object) -> ToolError:
    assert isinstance(result, ToolError)
    return result


def test_workspace_gets_a_random_name_and_keeps_it(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    assert known_workspace_name(str(tmp_path)) is None
    name = workspace_name(str(tmp_path))
    assert (len(str(name)), workspace_name(str(tmp_path)), known_workspace_name(str(tmp_path))) == (32, name, name)
    assert workspace_name(str(tmp_path / "other")) != name
    assert {path.name for path in tmp_path.iterdir()} == {"shared_name", "other"}
    assert stat.S_IMODE((tmp_path / "shared_name").stat().st_mode) == 0o600


def test_name_can_be_set_once_and_repeated(tmp_path: Path) -> None:
    assert give_workspace_name(str(tmp_path), "batch/b1/task-1") is None
    assert give_workspace_name(str(tmp_path), "batch/b1/task-1") is None
    assert workspace_name(str(tmp_path)) == "batch/b1/task-1"
    assert refusal(give_workspace_name(str(tmp_path), "batch/b2")).code is ToolErrorCode.CONFLICT
    assert known_workspace_name(str(tmp_path)) == "batch/b1/task-1"


def test_name_allows_only_harmless_characters(tmp_path: Path) -> None:
    for name in ("", "/a", "a b", "é", "x" * 201):
        assert refusal(give_workspace_name(str(tmp_path), name)).code is ToolErrorCode.INVALID_ARGUMENT
    assert os.listdir(tmp_path) == []


def test_invalid_name_file_is_reported_and_unchanged(tmp_path: Path) -> None:
    (tmp_path / "shared_name").write_bytes(b"two\nlines\xff")
    assert "holds no name of a workspace" in refusal(workspace_name(str(tmp_path))).message
    assert known_workspace_name(str(tmp_path)) is None
    assert refusal(give_workspace_name(str(tmp_path), "a")).code is ToolErrorCode.IO_ERROR
    assert (tmp_path / "shared_name").read_bytes() == b"two\nlines\xff"


def test_link_as_name_file_is_not_followed_and_a_full_disk_is_reported(tmp_path: Path) -> None:
    for link in ("/etc/hostname", "."):
        (tmp_path / "shared_name").symlink_to(link)
        assert "Cannot read" in refusal(workspace_name(str(tmp_path))).message
        (tmp_path / "shared_name").unlink()
    with failing("fsync", number=errno.ENOSPC):
        assert "the disk is full" in refusal(workspace_name(str(tmp_path))).message
    assert os.listdir(tmp_path) == []
