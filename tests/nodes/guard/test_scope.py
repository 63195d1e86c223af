"""Which names are protected, which names of a request permit a change, and what a strict run leaves alone."""

import pytest

from mendgraph.nodes.guard.scope import Scope, is_guarded, unnamed
from mendgraph.nodes.records import ToolCall

ROOT = "/home/dev/shop"


def scope(request: str, *writable: str, strict: bool = False) -> Scope:
    return Scope.of(request, writable, strict=strict, root=ROOT)


@pytest.mark.parametrize(
    ("request_", "permitted"),
    [
        ("Add a task to .vscode/tasks.json.", True),
        ("Add a task in `.vscode`", True),
        ("Set up .VSCODE/", True),
        (f"Mend {ROOT}/.vscode/tasks.json", True),
        ("Mend @.vscode/tasks.json, please", True),
        ("Mend web/.vscode/tasks.json", False),
        ("Add a build task for the editor, as tasks.json has it", False),
        ("Set up vscode", False),
        ("", False),
    ],
)
def test_protected_file_is_permitted_by_its_path_or_its_protected_folder(request_: str, permitted: bool) -> None:
    assert (scope(request_).protection(".vscode/tasks.json") == "") is permitted


def test_name_of_a_file_in_a_protected_folder_permits_no_other_file_in_it() -> None:
    named = scope("Add a task to .vscode/tasks.json.")
    assert [is_guarded(path, named) for path in (".vscode", ".vscode/tasks.json")] == [False, False]
    assert [is_guarded(path, named) for path in (".vscode/launch.json", "web/.idea/tasks.json")] == [True, True]


def test_name_permits_files_of_that_name_in_any_folder_and_no_other_protected_file() -> None:
    named = scope("Write down in AGENTS.md how tests are run")
    assert (named.protection("AGENTS.md"), named.protection("web/agents.md")) == ("", "")
    assert named.protection("CLAUDE.md") == "instructions, which agents follow in each later task"


def test_writable_path_permits_a_protected_file_only_where_it_names_one() -> None:
    assert scope("", ".vscode").protection(".vscode/tasks.json") == ""
    assert scope("", "web/").protection("web/.vscode/tasks.json") != ""


@pytest.mark.parametrize("path", ["pyproject.toml", ".github/workflows/ci.yml", "conftest.py", "README.md", "json.py"])
def test_ordinary_file_of_a_project_is_out_of_the_scope_of_a_strict_run_alone(path: str) -> None:
    assert scope("Fix it").protection(path) == ""
    assert scope("Fix it", strict=True).protection(path) != ""
    assert scope(f"Fix it in {path}.", strict=True).protection(path) == ""
    assert scope("Fix it", path, strict=True).protection(path) == ""


def test_strict_run_may_change_code_and_what_is_below_a_folder_that_is_named_with_its_slash() -> None:
    assert scope("Fix it", strict=True).protection("shop/cart.py") == ""
    assert scope("Fix docs/", strict=True).protection("docs/api/cart.md") == ""
    assert scope("Fix docs", strict=True).protection("docs/api/cart.md") != ""


@pytest.mark.parametrize(
    ("request_", "path"),
    [
        (f"Mend a.md in {ROOT}/", "a.md"),
        ("Fix `app/[slug]/(shop)/$id.test.ts`, please", "app/[slug]/(shop)/$id.test.ts"),
        ('Mend "docs/my notes.md".', "docs/my notes.md"),
        ("Mend docs/u\u0308ber.md", "docs/\u00fcber.md"),
    ],
)
def test_path_with_unusual_characters_is_named(request_: str, path: str) -> None:
    assert scope("Mend it", strict=True).protection(path) != ""
    assert scope(request_, strict=True).protection(path) == ""


PATCH = "*** Begin Patch\n*** Delete File: a.py\n*** Update File: b.py\n*** Move to: c.py\n@@\n-x\n+y\n*** End Patch"


@pytest.mark.parametrize(
    ("tool", "arguments", "path", "gone"),
    [
        ("delete_file", {"path": "a.py"}, "a.py", True),
        ("move_file", {"path": "a.py", "target": "b.py"}, "a.py", True),
        ("move_file", {"path": "a.py", "target": "b.py"}, "b.py", False),
        ("apply_patch", {"patch": PATCH}, "a.py", True),
        ("apply_patch", {"patch": PATCH}, "b.py", True),
        ("apply_patch", {"patch": PATCH}, "c.py", False),
        ("edit_file", {"path": "a.py", "old_str": "x", "new_str": ""}, "a.py", False),
    ],
)
def test_strict_run_takes_a_file_away_only_by_name(tool: str, arguments: dict[str, str], path: str, gone: bool) -> None:
    call = ToolCall(call_id="1", tool=tool, arguments=arguments, raw_arguments="")
    assert bool(scope("Tidy up", strict=True).deletion(call, path)) is gone
    assert scope(f"Tidy up {path}", strict=True).deletion(call, path) == ""
    assert scope("Tidy up").deletion(call, path) == ""


def test_settings_inside_of_installed_packages_are_not_kept_from_programs() -> None:
    assert is_guarded("web/.vscode/tasks.json", Scope())
    assert not is_guarded("web/node_modules/left-pad/.vscode/tasks.json", Scope())


def test_file_is_unnamed_where_the_request_names_others() -> None:
    assert unnamed("Fix the cart", ["cart.py"]) == []
    assert unnamed("Fix shop/cart.py and docs/.", ["shop/cart.py", "docs/a/b.md", "app.py"]) == ["app.py"]


def test_nothing_is_unnamed_where_no_named_file_was_changed() -> None:
    assert unnamed("tests/test_total.py fails. Fix it.", ["shop/cart.py"]) == []
    assert unnamed("README.md says how.", ["cli.py", "b.py"]) == []


def test_commit_has_tests_documents_and_files_of_the_same_folder_together_unmarked() -> None:
    changed = ["shop/cart.py", "tests/test_b.py", "CHANGES.md", "shop/price.py", "web/app.ts", "deploy.sh"]
    assert unnamed("Fix shop/cart.py.", changed) == ["web/app.ts", "deploy.sh"]


def test_file_is_named_with_its_test() -> None:
    assert unnamed("Make tests/test_cart.py pass.", ["tests/test_cart.py", "shop/cart.py"]) == []
