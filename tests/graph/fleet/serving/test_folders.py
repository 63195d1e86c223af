"""A request names a project; where that lies nobody says but the operator."""

import sys
from pathlib import Path
from types import ModuleType

import pytest

from mendgraph.graph.configuration.narrowing import refusal
from mendgraph.graph.fleet.serving.folders import load_resolver, project_folder
from mendgraph.graph.fleet.serving.tenants import Tenants
from mendgraph.nodes.execute_tools.store.postgres_url import known_workspace_name
from mendgraph.nodes.execute_tools.store.run_folder import workspace_folder


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "root" / "ann" / "website").mkdir(parents=True)
    (tmp_path / "root" / "bob" / "secret").mkdir(parents=True)
    (tmp_path / "root" / "ann" / "file").touch()
    (tmp_path / "root" / "ann" / "linked").symlink_to(tmp_path / "root" / "bob" / "secret")
    (tmp_path / "root" / "eve").symlink_to(tmp_path / "root" / "bob")
    return tmp_path / "root"


def test_a_project_is_a_folder_below_its_user(root: Path) -> None:
    resolver = load_resolver(Tenants({}, root=str(root)))
    assert project_folder(resolver, "ann", "website") == str(root.resolve() / "ann" / "website")


@pytest.mark.parametrize(
    ("user", "project"), [("ann", "secret"), ("ann", "file"), ("ann", "linked"), ("eve", "secret")]
)
def test_what_is_no_folder_of_the_user_is_not_there(root: Path, user: str, project: str) -> None:
    resolver = load_resolver(Tenants({}, root=str(root)))
    found = project_folder(resolver, user, project)
    assert found == refusal(f"There is no project {project}. Ask the people who run this server for it.")


@pytest.mark.parametrize("name", ["../bob/secret", "/etc", "a/b", "..", "-x", "a\0b", "a\nb", "x" * 65])
def test_a_path_is_no_name(root: Path, name: str) -> None:
    found = project_folder(load_resolver(Tenants({}, root=str(root))), "ann", name)
    assert not isinstance(found, str)
    assert "is no project's name" in found.message
    assert "\n" not in found.message


@pytest.mark.parametrize("name", [None, "", ".", 7])
def test_a_request_names_a_project(root: Path, name: object) -> None:
    found = project_folder(load_resolver(Tenants({}, root=str(root))), "ann", name)
    assert not isinstance(found, str)
    assert found.message.startswith("The request names no project")


def test_a_function_may_find_it(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def find(user: str, project: str) -> str | None:
        known = {"website": str(root / user / "website"), "no-folder": str(root / "none"), "relative": "."}
        return known[project] if project != "none" else None

    monkeypatch.setitem(sys.modules, "company_folders", module := ModuleType("company_folders"))
    module.find = find  # type: ignore[attr-defined]
    resolver = load_resolver(Tenants({}, resolver="company_folders:find"))
    assert project_folder(resolver, "ann", "website") == str(root.resolve() / "ann" / "website")
    said = {
        "none": "There is no project none. Ask the people who run this server for it.",
        "unknown": "The server's resolver failed for the project unknown (KeyError).",
        "no-folder": "The server's resolver gave no folder for the project no-folder.",
        "relative": "The server's resolver gave no folder for the project relative.",
    }
    assert {name: project_folder(resolver, "ann", name) for name in said} == {
        name: refusal(message) for name, message in said.items()
    }


@pytest.mark.parametrize(
    ("tenants", "said"),
    [
        (Tenants({}, root="/no/such"), "root: there is no folder '/no/such': make it, or name another one"),
        (Tenants({}, resolver="json:nothing"), r"resolver: json:nothing cannot be loaded \(AttributeError: "),
        (Tenants({}, resolver="no_such_module:find"), r"cannot be loaded \(ModuleNotFoundError: No module named"),
        (Tenants({}, resolver="json:__name__"), "resolver: json:__name__ is no function of a user and a project"),
    ],
)
def test_a_resolver_that_is_none_is_said_at_the_start(tenants: Tenants, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        load_resolver(tenants)


def test_a_project_has_its_name_in_the_shared_store(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MENDGRAPH_STORE_URL", "postgresql://nobody@nowhere/none")
    resolver = load_resolver(Tenants({}, root=str(root)))
    folder = project_folder(resolver, "ann", "website")
    assert isinstance(folder, str)
    records = workspace_folder(folder)
    assert isinstance(records, str)
    assert known_workspace_name(records) == "ann/website"
    other = project_folder(lambda *_: folder, "bob", "website")
    assert not isinstance(other, str)
    assert "cannot be called 'bob/website' as well" in other.message
