"""Who may begin a run, and with what."""

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mendgraph.graph.configuration.context import AgentContext
from mendgraph.graph.configuration.narrowing import refusal
from mendgraph.graph.fleet.serving.admission import (
    TENANTS_VARIABLE,
    Admitter,
    CannotServeError,
    Locks,
    Place,
    RunRefusedError,
    open_admitter,
    project_folder,
)
from mendgraph.graph.fleet.serving.tenants import Tenant, Tenants
from mendgraph.nodes.execute_tools.store.database import StoreError, read_url
from mendgraph.nodes.execute_tools.store.postgres import close_postgres
from mendgraph.nodes.execute_tools.store.run_folder import give_workspace_name, known_workspace_name, workspace_folder
from mendgraph.nodes.records import StopReason
from tests.graph.fleet.serving.memory_locks import MemoryLocks

ANN = Tenant("ann", (), AgentContext(account="ann", max_steps=9), runs_at_once=2)
NOBODY = refusal("Nobody knows who asks: send the header Authorization: Bearer <token>.")


class Broken(MemoryLocks):
    """A database that is away."""

    def take(self, _name: str) -> bool:
        raise StoreError("The database is away.")

    def leave(self, _name: str) -> None:
        raise StoreError("The connection was lost.")


def test_locks_are_held_once(shared_store: str) -> None:
    first, second = (Locks(read_url(shared_store)) for _ in range(2))
    assert (first.take("a"), second.take("a"), second.take("b")) == (True, False, True)
    assert (second.is_held("a"), second.is_held("c")) == (True, False)
    first.leave("a")
    assert second.take("a")
    close_postgres()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    found = tmp_path.resolve() / "root"
    (found / "ann" / "website").mkdir(parents=True)
    (found / "bob" / "secret").mkdir(parents=True)
    (found / "ann" / "file").touch()
    (found / "ann" / "linked").symlink_to(found / "bob" / "secret")
    (found / "eve").symlink_to(found / "bob")
    return found


def admitter(root: Path, locks: MemoryLocks | None = None) -> Admitter:
    return Admitter(Tenants({"ann": ANN}, root=str(root)), locks or MemoryLocks())


@pytest.mark.parametrize(
    "configurable",
    [
        {},
        {"langgraph_auth_user": None},
        {"langgraph_auth_user": {}},
        {"langgraph_auth_user": {"identity": "bob"}},
        {"langgraph_auth_user": {"identity": ["ann"]}},
        {"langgraph_auth_user": "ann"},
        {"user_id": "ann"},
    ],
)
def test_who_is_not_known_is_nobody(tmp_path: Path, configurable: dict[str, Any]) -> None:
    assert admitter(tmp_path).user(configurable) == NOBODY


@pytest.mark.parametrize("user", [{"identity": "ann"}, SimpleNamespace(identity="ann")])
def test_servers_say_it_in_two_ways(tmp_path: Path, user: object) -> None:
    assert admitter(tmp_path).user({"langgraph_auth_user": user}) is ANN


def test_turn_gets_its_context(root: Path) -> None:
    held = AgentContext(workspace=str(root / "ann" / "website"), account="ann", max_steps=3)
    its = admitter(root)
    assert its.admit(ANN, {"workspace": "website", "max_steps": 3}) == held
    assert its.admit(ANN, AgentContext(workspace="website", max_steps=3)) == held
    assert its.admit(ANN, None) == its.admit(ANN, {})


def test_turn_goes_on_with_what_is_still_allowed(root: Path) -> None:
    folder, its = str(root / "ann" / "website"), admitter(root)
    stored = AgentContext(account="ann", max_steps=9, workspace=folder)
    assert its.readmit(ANN, stored) is stored
    others = stored.model_copy(update={"account": "bob"})
    assert its.readmit(ANN, others) == refusal("This turn was begun by somebody else.")
    assert its.readmit(ANN, None) == refusal("There is nothing to go on with: send a request.")
    said = "The server allows other things than when this turn began ({}): send a new request."
    wide, moved = (stored.model_copy(update=each) for each in ({"max_steps": 10}, {"workspace": "/elsewhere/website"}))
    assert its.readmit(ANN, wide) == refusal(said.format("max_steps"))
    assert its.readmit(ANN, moved) == refusal(said.format("workspace"))
    gone = stored.model_copy(update={"workspace": str(root / "ann" / "gone")})
    assert its.readmit(ANN, gone) == its.admit(ANN, {"workspace": "gone"})


def test_user_has_some_runs_at_once(tmp_path: Path) -> None:
    locks = MemoryLocks("run 0 of ann", "thread t3")
    its = admitter(tmp_path, locks)
    first, second, third = (Place(its.locks, ANN, thread) for thread in ("t1", "t2", "t3"))
    assert first.take() is None
    assert locks.names == {"run 0 of ann", "run 1 of ann", "thread t1", "thread t3"}
    with pytest.raises(RunRefusedError, match="Another run of this thread is at work"):
        third.take()  # which says nothing of places: that would be written into the thread
    third.leave()
    said = "ann has 2 runs at work on these servers, which is the most at once."
    assert second.take() == refusal(said, StopReason.WORKSPACE_BUSY)
    second.leave()
    first.leave()
    assert locks.names == {"run 0 of ann", "thread t3"}


def test_place_that_was_left_is_not_taken_any_more() -> None:
    locks = MemoryLocks()
    place = Place(locks, ANN, "t1")
    place.leave()
    assert place.take() is None
    assert locks.names == set()


def test_without_a_lock_nobody_begins() -> None:
    place = Place(Broken(), ANN, "t1")
    with pytest.raises(RunRefusedError, match=r"The database is away\."):
        place.take()


@pytest.mark.parametrize(
    ("user", "project", "said"),
    [
        *(("ann", name, f"There is no project {name}. Ask") for name in ("secret", "file", "linked", "none")),
        ("eve", "secret", "There is no project secret."),
        *(("ann", name, "is no project's name:") for name in ("../bob/secret", "/etc", "a/b", "..")),
        *(("ann", name, "is no project's name:") for name in ("-x", "a\0b", "a\nb", "x" * 65)),
        *(("ann", name, "The request names no project") for name in (None, "", ".", 7)),
    ],
)
def test_project_is_a_folder_below_its_user(root: Path, user: str, project: object, said: str) -> None:
    assert project_folder(str(root), "ann", "website") == str(root / "ann" / "website")
    found = project_folder(str(root), user, project)
    assert not isinstance(found, str)
    assert said in found.message
    assert "\n" not in found.message


def test_project_has_its_name_in_the_shared_store(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MENDGRAPH_STORE_URL", "postgresql://nobody@nowhere/none")
    folder = project_folder(str(root), "ann", "website")
    assert isinstance(folder, str)
    records = workspace_folder(folder)
    assert isinstance(records, str)
    assert known_workspace_name(records) == "ann/website"
    (root / "ann" / "other").mkdir()
    taken = workspace_folder(str(root / "ann" / "other"))
    assert isinstance(taken, str)
    assert give_workspace_name(taken, "bob/website") is None
    other = project_folder(str(root), "ann", "other")
    assert not isinstance(other, str)
    assert "cannot be called 'ann/other' as well" in other.message


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    """Each test opens it anew."""
    open_admitter.cache_clear()
    yield
    open_admitter.cache_clear()


def write(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str) -> None:
    path = tmp_path / "tenants.toml"
    path.write_text(text, encoding="utf-8")
    monkeypatch.setenv(TENANTS_VARIABLE, str(path))


def test_file_is_read_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("MENDGRAPH_STORE_URL", "postgresql://nobody@nowhere/none")
    write(monkeypatch, tmp_path, f'root = "{tmp_path}"\n[users.ann]\ntoken_sha256 = []\n')
    admitter = open_admitter()
    assert list(admitter.tenants.users) == ["ann"]
    monkeypatch.delenv(TENANTS_VARIABLE)
    assert open_admitter() is admitter


def test_without_a_file_nothing_is_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CannotServeError, match=r"^Name the file with the server's users in MENDGRAPH_TENANTS\.$"):
        open_admitter()
    monkeypatch.setenv(TENANTS_VARIABLE, "/no/such/file")
    with pytest.raises(CannotServeError, match=r"^Cannot read '/no/such/file': .* MENDGRAPH_TENANTS names it\.$"):
        open_admitter()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[users.ann]\n", r"tenants.toml: root: Field required$"),
        ('root = "/no/such"\n[users.ann]\ntoken_sha256 = []\n', "^root: there is no folder '/no/such'"),
    ],
)
def test_what_is_wrong_is_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str, said: str) -> None:
    write(monkeypatch, tmp_path, text)
    with pytest.raises(CannotServeError, match=said) as refused:
        open_admitter()
    assert "\n" not in str(refused.value)


def test_store_that_is_none_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    write(monkeypatch, tmp_path, f'root = "{tmp_path}"\n[users.ann]\ntoken_sha256 = []\n')
    monkeypatch.setenv("MENDGRAPH_STORE_URL", "mysql://secret@host/db")
    with pytest.raises(CannotServeError, match="MENDGRAPH_STORE_URL is no URL of a PostgreSQL database"):
        open_admitter()
