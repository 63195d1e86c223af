import os
from pathlib import Path

import pytest

from nodes.execute_tools.environment.workspace import Workspace
from nodes.records import ToolError, ToolErrorCode
from tests.nodes.execute_tools.environment.layout import DENIAL, code_of, content, no_env, sha


def test_the_judge_is_asked_about_both_names(root: Path) -> None:
    asked: list[tuple[str, bool]] = []

    def judge(path: str, for_write: bool) -> ToolError | None:
        asked.append((path, for_write))
        return None

    workspace = Workspace(str(root), judge)
    workspace.read_file("./src/../link.py")
    assert dict.fromkeys(asked) == dict.fromkeys([("link.py", False), ("src/b.py", False)])
    asked.clear()
    workspace.write_file("new/file.py", b"", expected_sha256="")
    assert dict.fromkeys(asked) == dict.fromkeys([("new/file.py", True)])
    asked.clear()
    workspace.list_directory(".")
    assert dict.fromkeys(asked) == dict.fromkeys([(".", False)])


def test_the_name_as_asked_for_is_judged_when_it_is_absolute_through_a_link(tmp_path: Path, root: Path) -> None:
    (tmp_path / "alias").symlink_to(root)
    (root / "sub").mkdir()
    (root / "sub" / ".env").symlink_to("../a.py")
    workspace = Workspace(str(root), no_env)
    assert workspace.read_file(f"{tmp_path}/alias/a.py") == content("a.py", b"a = 1\r\n")
    assert workspace.read_file(f"{tmp_path}/alias/sub/.env") == DENIAL


def test_a_link_with_a_denied_name_is_denied_even_if_it_leads_to_a_harmless_file(root: Path) -> None:
    (root / "sub").mkdir()
    (root / "sub" / ".env").symlink_to("../a.py")
    assert Workspace(str(root), no_env).read_file("sub/.env") == DENIAL


def test_a_denied_name_says_nothing_about_what_is_there(root: Path) -> None:
    (root / ".env").unlink()
    assert Workspace(str(root), no_env).read_file(".env") == DENIAL
    assert Workspace(str(root), no_env).exists(".env") is False


def test_the_name_of_the_handle_has_the_last_word(
    root: Path, workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    def call_files(name: str | None) -> None:
        def answer(descriptor: int) -> str | None:
            return str(root) if os.path.samestat(os.fstat(descriptor), os.stat(root)) else name

        monkeypatch.setattr("nodes.execute_tools.environment.judged_paths.handle_name", answer)

    call_files(f"{root}/.env")
    assert workspace.read_file("a.py") == DENIAL
    assert workspace.write_file("a.py", b"", expected_sha256=sha(b"a = 1\r\n")) == DENIAL
    call_files("/moved/away")
    assert code_of(workspace.read_file("a.py")) is ToolErrorCode.CONFLICT
    call_files(None)
    assert workspace.read_file("a.py") == content("a.py", b"a = 1\r\n")


def test_a_judge_that_breaks_denies(root: Path) -> None:
    def broken(_path: str, _for_write: bool) -> ToolError | None:
        raise ZeroDivisionError

    workspace = Workspace(str(root), broken)
    assert workspace.read_file("a.py") == ToolError(
        code=ToolErrorCode.PERMISSION_DENIED,
        message="'a.py' could not be judged (ZeroDivisionError), so it is denied.",
    )
    assert list(workspace.walk()) == []


@pytest.mark.parametrize(
    ("path", "for_write", "denied"),
    [
        ("a.py", False, False),
        ("nope.py", True, False),
        (".env", False, True),
        ("new/.env", True, True),
        ("innocent.txt", False, True),
        ("out.txt", False, True),
        ("../x", True, True),
    ],
)
def test_a_path_can_be_judged_without_being_used(
    workspace: Workspace, path: str, for_write: bool, denied: bool
) -> None:
    assert (workspace.denied(path, for_write=for_write) is not None) is denied
