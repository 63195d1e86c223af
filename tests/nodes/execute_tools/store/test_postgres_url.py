"""Which PostgreSQL database holds the store, and how a workspace is called there."""

import os
import stat
import sys
from pathlib import Path

import pytest

from mendgraph.nodes.execute_tools.store.database import StoreError, postgres_url, read_url
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
        "MENDGRAPH_STORE_URL names a PostgreSQL database, and what speaks to one is not installed:"
        " pip install 'mendgraph[postgres]'."
    )


def refusal(found: object) -> ToolError:
    assert isinstance(found, ToolError)
    return found


def test_a_workspace_gets_a_random_name_and_keeps_it(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    assert known_workspace_name(str(tmp_path)) is None
    name = workspace_name(str(tmp_path))
    assert (len(str(name)), workspace_name(str(tmp_path)), known_workspace_name(str(tmp_path))) == (32, name, name)
    assert workspace_name(str(tmp_path / "other")) != name
    assert {path.name for path in tmp_path.iterdir()} == {"shared_name", "other"}
    assert stat.S_IMODE((tmp_path / "shared_name").stat().st_mode) == 0o600


def test_a_name_may_be_given_once_and_said_again(tmp_path: Path) -> None:
    assert give_workspace_name(str(tmp_path), "batch/b1/task-1") is None
    assert give_workspace_name(str(tmp_path), "batch/b1/task-1") is None
    assert workspace_name(str(tmp_path)) == "batch/b1/task-1"
    assert refusal(give_workspace_name(str(tmp_path), "batch/b2")).code is ToolErrorCode.CONFLICT
    assert known_workspace_name(str(tmp_path)) == "batch/b1/task-1"


@pytest.mark.parametrize("name", ["", "/a", "a b", "é", "x" * 201])
def test_a_name_is_made_of_harmless_signs(tmp_path: Path, name: str) -> None:
    assert refusal(give_workspace_name(str(tmp_path), name)).code is ToolErrorCode.INVALID_ARGUMENT
    assert os.listdir(tmp_path) == []


def test_a_file_that_holds_no_name_is_told_and_stays(tmp_path: Path) -> None:
    (tmp_path / "shared_name").write_bytes(b"two\nlines\xff")
    assert "holds no name of a workspace" in refusal(workspace_name(str(tmp_path))).message
    assert known_workspace_name(str(tmp_path)) is None
    assert refusal(give_workspace_name(str(tmp_path), "a")).code is ToolErrorCode.IO_ERROR
    assert (tmp_path / "shared_name").read_bytes() == b"two\nlines\xff"


@pytest.mark.parametrize("link", ["/etc/hostname", "."])
def test_a_link_in_its_place_is_not_followed(tmp_path: Path, link: str) -> None:
    (tmp_path / "shared_name").symlink_to(link)
    assert "Cannot read" in refusal(workspace_name(str(tmp_path))).message


def test_a_disk_that_is_full_is_told_and_nothing_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    assert "the disk is full" in refusal(workspace_name(str(tmp_path))).message
    assert os.listdir(tmp_path) == []
