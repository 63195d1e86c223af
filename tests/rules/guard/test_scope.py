"""Which names are protected, which names in a request permit a change, and what a strict run does not change."""

from mendgraph.nodes.guard.scope import Scope, is_guarded, unnamed
from mendgraph.nodes.records import ToolCall
from tests.row_tables import rows

ROOT = "/home/dev/shop"


def scope(request: str, *writable: str, strict: bool = False) -> Scope:
    return Scope.of(request, writable, strict=strict, root=ROOT)


@rows(
    ("Add a task to .vscode/tasks.json.", True),
    ("Add a task in `.vscode`", True),
    ("Set up .VSCODE/", True),
    (f"Mend {ROOT}/.vscode/tasks.json", True),
    ("Mend @.vscode/tasks.json, please", True),
    ("Mend web/.vscode/tasks.json", False),
    ("Add a build task for the editor, as tasks.json has it", False),
    ("Set up vscode", False),
    ("", False),
)
def test_protected_file_is_permitted_by_its_path_or_folder(request_: str, permitted: bool) -> None:
    assert (scope(request_).protection(".vscode/tasks.json") == "") is permitted


def test_naming_a_file_in_a_protected_folder_permits_only_that_file() -> None:
    named = scope("Add a task to .vscode/tasks.json.")
    paths = (".vscode", ".vscode/tasks.json", ".vscode/launch.json", "web/.idea/tasks.json")
    assert [is_guarded(path, named) for path in paths] == [False, False, True, True]


def test_file_name_permits_that_name_in_any_folder_only() -> None:
    named = scope("Write down in AGENTS.md how tests are run")
    assert (named.protection("AGENTS.md"), named.protection("web/agents.md")) == ("", "")
    assert named.protection("CLAUDE.md") == "instructions, which agents follow in each later task"


def test_writable_path_permits_a_protected_file_only_if_it_names_it() -> None:
    assert scope("", ".vscode").protection(".vscode/tasks.json") == ""
    assert scope("", "web/").protection("web/.vscode/tasks.json") != ""


def test_strict_run_may_change_code_and_folders_named_with_a_slash() -> None:
    assert scope("Fix it", strict=True).protection("shop/cart.py") == ""
    assert scope("Fix docs/", strict=True).protection("docs/api/cart.md") == ""
    assert scope("Fix docs", strict=True).protection("docs/api/cart.md") != ""


@rows(
    *((f"Fix it in {path}.", path) for path in (".github/workflows/ci.yml", "conftest.py", "json.py")),
    (f"Mend a.md in {ROOT}/", "a.md"),
    ("Fix `app/[slug]/(shop)/$id.test.ts`, please", "app/[slug]/(shop)/$id.test.ts"),
    ('Mend "docs/my notes.md".', "docs/my notes.md"),
    ("Mend docs/u\u0308ber.md", "docs/\u00fcber.md"),
)
def test_strict_run_may_change_other_files_only_if_named(request_: str, path: str) -> None:
    assert scope("Fix it").protection(path) == ""
    assert scope("Fix it", strict=True).protection(path) != ""
    assert scope(request_, strict=True).protection(path) == ""
    assert scope("Fix it", path, strict=True).protection(path) == ""


PATCH = "*** Begin Patch\n*** Delete File: a.py\n*** Update File: b.py\n*** Move to: c.py\n@@\n-x\n+y\n*** End Patch"


@rows(
    ("delete_file", {"path": "a.py"}, "a.py", True),
    ("move_file", {"path": "a.py", "target": "b.py"}, "a.py", True),
    ("move_file", {"path": "a.py", "target": "b.py"}, "b.py", False),
    ("apply_patch", {"patch": PATCH}, "a.py", True),
    ("apply_patch", {"patch": PATCH}, "b.py", True),
    ("apply_patch", {"patch": PATCH}, "c.py", False),
    ("edit_file", {"path": "a.py", "old_str": "x", "new_str": ""}, "a.py", False),
)
def test_strict_run_deletes_a_file_only_if_named(tool: str, arguments: dict[str, str], path: str, gone: bool) -> None:
    call = ToolCall(call_id="1", tool=tool, arguments=arguments, raw_arguments="")
    assert bool(scope("Tidy up", strict=True).deletion(call, path)) is gone
    assert scope(f"Tidy up {path}", strict=True).deletion(call, path) == ""
    assert scope("Tidy up").deletion(call, path) == ""


def test_settings_in_installed_packages_are_not_hidden_from_programs() -> None:
    assert is_guarded("web/.vscode/tasks.json", Scope())
    assert not is_guarded("web/node_modules/left-pad/.vscode/tasks.json", Scope())


@rows(
    ("Fix the cart", "cart.py", ""),
    ("Fix shop/cart.py and docs/.", "shop/cart.py docs/a/b.md app.py", "app.py"),
    ("tests/test_total.py fails. Fix it.", "shop/cart.py", ""),  # as no named file was changed
    ("README.md says how.", "cli.py b.py", ""),
    ("Fix shop/cart.py.", "shop/cart.py tests/test_b.py CHANGES.md shop/price.py web/app.ts a.sh", "web/app.ts a.sh"),
    ("Make tests/test_cart.py pass.", "tests/test_cart.py shop/cart.py", ""),
)
def test_changed_file_is_marked_unnamed_if_the_request_names_others(request_: str, changed: str, marked: str) -> None:
    assert unnamed(request_, changed.split()) == marked.split()
