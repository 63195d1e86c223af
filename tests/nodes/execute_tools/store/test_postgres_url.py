"""Which PostgreSQL database holds the store, and how a workspace is called there."""

import os
import stat
import sys
from pathlib import Path

import psycopg
import pytest

from mendgraph.nodes.execute_tools.store.database import LostError, StoreError, postgres_url, read_url
from mendgraph.nodes.execute_tools.store.postgres import Connections
from mendgraph.nodes.execute_tools.store.run_folder import give_workspace_name, known_workspace_name, workspace_name
from mendgraph.nodes.records import ToolError, ToolErrorCode

VARIABLE = "MENDGRAPH_STORE_URL"
WORD = "-".join(("plum", "51@", "orchard"))


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("postgresql://u@db.example:5433/runs", "'runs' on db.example:5433"),
        ("postgres://u:w@db.example/runs", "'runs' on db.example"),
        ("postgresql:///runs?host=%2Frun%2Fpg", "'runs' on /run/pg"),
        ("postgresql://u@/?dbname=runs", "'runs' on this machine"),
        ("postgresql://somebody@h", "'somebody' on h"),
        ("postgresql://h", "'?' on h"),
        ("postgresql://u@h/a%0Ab\x1b[2J", "'a\\nb\\x1b[2J' on h"),
    ],
)
def test_it_is_called_by_its_database_and_host(url: str, name: str) -> None:
    assert read_url(url).name == name


@pytest.mark.parametrize(
    "url",
    [
        f"postgresql://u:{WORD.replace('@', '%40')}@h/runs",
        f"postgresql://h/runs?user=u&password={WORD.replace('@', '%40')}",
        f"postgresql://h/runs?sslpassword={WORD.replace('@', '%40')}",
        f"postgresql://{WORD.replace('@', '%40')}:{WORD.replace('@', '%40')}@h",
    ],
)
def test_its_password_is_in_no_form_of_it_that_is_shown(url: str) -> None:
    found = read_url(url)
    for text in (found.name, repr(found), found.clean(f"failed for {WORD} and {WORD.replace('@', '%40')}")):
        assert (WORD in text, WORD.replace("@", "%40") in text) == (False, False)
    assert found.clean("one\n\ttwo\x1b[2J three") == "one two [2J three"


@pytest.mark.parametrize("url", ["mysql://u:{}@h/d", "{}", "host=h password={}", "sqlite:///{}", "://{}"])
def test_what_is_no_url_of_postgresql_is_refused_without_a_word_of_it(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, url.format(WORD))
    with pytest.raises(StoreError) as caught:
        postgres_url()
    assert str(caught.value) == (
        "MENDGRAPH_STORE_URL is no URL of a PostgreSQL database: write postgresql://user:password@host:5432/database,"
        " or remove the variable."
    )


@pytest.mark.parametrize("url", ["postgresql://u:p@ss/{}:x@h:port/d"])
def test_what_cannot_be_taken_apart_is_refused_without_a_word_of_it(url: str) -> None:
    with pytest.raises(StoreError) as caught:
        read_url(url.format(WORD))
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


@pytest.mark.parametrize(
    ("state", "reason", "is_lost"),
    [
        ("28P01", "it does not let this user in: put the user and password that it knows into", False),
        ("3D000", "there is no such database: make it with `createdb`, or name another one", False),
        ("42501", "its user may not do this: GRANT CREATE ON DATABASE", False),
        ("42P01", "no such table: somebody has changed its tables. Put a backup in its place", False),
        ("53100", "its disk is full. Make room and try again", False),
        ("53300", "it has no connection left: raise its max_connections, or run fewer processes", False),
        ("57P01", "the server was stopped, or is starting: try again when it is there", True),
        ("25006", "it may only be read: name its primary server in MENDGRAPH_STORE_URL", False),
        ("25P03", "no such table (SQLSTATE 25P03)", True),
        ("08006", "no such table (SQLSTATE 08006)", True),
        ("22023", "no such table (SQLSTATE 22023)", False),
        ("MG001", "This process lost its lock on the workspace", False),
    ],
)
def test_each_error_of_the_server_has_its_reason_and_remedy(state: str, reason: str, is_lost: bool) -> None:
    kind = type("ServerError", (psycopg.Error,), {"sqlstate": state})
    refused = Connections(read_url("postgresql://u@h/runs")).refused(kind("no such table"))
    assert reason in str(refused)
    assert isinstance(refused, LostError) is is_lost


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("FATAL: sorry, too many clients already", "it has no connection left"),
        ("FATAL: remaining connection slots are reserved", "it has no connection left"),
        ("connection refused", "it cannot be reached (connection refused). Start it, or correct MENDGRAPH_STORE_URL"),
    ],
)
def test_server_that_lets_nobody_in_is_told_by_its_words(words: str, reason: str) -> None:
    refused = Connections(read_url("postgresql://u@h/runs")).refused(psycopg.OperationalError(words))
    assert reason in str(refused)


def refusal(found: object) -> ToolError:
    assert isinstance(found, ToolError)
    return found


def test_workspace_gets_a_random_name_and_keeps_it(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    assert known_workspace_name(str(tmp_path)) is None
    name = workspace_name(str(tmp_path))
    assert (len(str(name)), workspace_name(str(tmp_path)), known_workspace_name(str(tmp_path))) == (32, name, name)
    assert workspace_name(str(tmp_path / "other")) != name
    assert {path.name for path in tmp_path.iterdir()} == {"shared_name", "other"}
    assert stat.S_IMODE((tmp_path / "shared_name").stat().st_mode) == 0o600


def test_name_may_be_given_once_and_said_again(tmp_path: Path) -> None:
    assert give_workspace_name(str(tmp_path), "batch/b1/task-1") is None
    assert give_workspace_name(str(tmp_path), "batch/b1/task-1") is None
    assert workspace_name(str(tmp_path)) == "batch/b1/task-1"
    assert refusal(give_workspace_name(str(tmp_path), "batch/b2")).code is ToolErrorCode.CONFLICT
    assert known_workspace_name(str(tmp_path)) == "batch/b1/task-1"


@pytest.mark.parametrize("name", ["", "/a", "a b", "é", "x" * 201])
def test_name_is_made_of_harmless_signs(tmp_path: Path, name: str) -> None:
    assert refusal(give_workspace_name(str(tmp_path), name)).code is ToolErrorCode.INVALID_ARGUMENT
    assert os.listdir(tmp_path) == []


def test_file_that_holds_no_name_is_told_and_stays(tmp_path: Path) -> None:
    (tmp_path / "shared_name").write_bytes(b"two\nlines\xff")
    assert "holds no name of a workspace" in refusal(workspace_name(str(tmp_path))).message
    assert known_workspace_name(str(tmp_path)) is None
    assert refusal(give_workspace_name(str(tmp_path), "a")).code is ToolErrorCode.IO_ERROR
    assert (tmp_path / "shared_name").read_bytes() == b"two\nlines\xff"


@pytest.mark.parametrize("link", ["/etc/hostname", "."])
def test_link_in_its_place_is_not_followed(tmp_path: Path, link: str) -> None:
    (tmp_path / "shared_name").symlink_to(link)
    assert "Cannot read" in refusal(workspace_name(str(tmp_path))).message


def test_disk_that_is_full_is_told_and_nothing_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    assert "the disk is full" in refusal(workspace_name(str(tmp_path))).message
    assert os.listdir(tmp_path) == []
