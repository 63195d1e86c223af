"""A server without users does not start."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from mendgraph.graph.fleet.serving.locks import FileLocks
from mendgraph.graph.fleet.serving.opening import TENANTS_VARIABLE, CannotServeError, load_tenants, open_desk


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    """Each test opens it anew."""
    open_desk.cache_clear()
    yield
    open_desk.cache_clear()


def write(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str) -> None:
    path = tmp_path / "tenants.toml"
    path.write_text(text, encoding="utf-8")
    monkeypatch.setenv(TENANTS_VARIABLE, str(path))


def test_the_file_is_read_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    write(monkeypatch, tmp_path, f'root = "{tmp_path}"\n[users.ann]\ntoken_sha256 = []\n')
    desk = open_desk()
    assert list(desk.tenants.users) == ["ann"]
    assert isinstance(desk.locks, FileLocks)
    monkeypatch.delenv(TENANTS_VARIABLE)
    assert open_desk() is desk


def test_without_a_file_nothing_is_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CannotServeError, match=r"^Name the file with the server's users in MENDGRAPH_TENANTS\.$"):
        load_tenants()
    monkeypatch.setenv(TENANTS_VARIABLE, "/no/such/file")
    with pytest.raises(CannotServeError, match=r"^Cannot read '/no/such/file': .* MENDGRAPH_TENANTS names it\.$"):
        load_tenants()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[users.ann]\n", r"tenants.toml: say where projects are.* \(and 1 more problems\)$"),
        ('root = "/no/such"\n[users.ann]\ntoken_sha256 = []\n', "^root: there is no folder '/no/such'"),
        ('resolver = "json:none"\n[users.ann]\ntoken_sha256 = []\n', "^resolver: json:none cannot be loaded"),
    ],
)
def test_what_is_wrong_is_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str, said: str) -> None:
    write(monkeypatch, tmp_path, text)
    with pytest.raises(CannotServeError, match=said) as refused:
        open_desk()
    assert "\n" not in str(refused.value)


def test_a_store_that_is_none_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    write(monkeypatch, tmp_path, f'root = "{tmp_path}"\n[users.ann]\ntoken_sha256 = []\n')
    monkeypatch.setenv("MENDGRAPH_STORE_URL", "mysql://secret@host/db")
    with pytest.raises(CannotServeError, match="MENDGRAPH_STORE_URL is no URL of a PostgreSQL database"):
        open_desk()
