import hashlib
import os
import re
import stat
import time
from itertools import product
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from mendgraph.nodes.records import ToolError, ToolErrorCode
from mendgraph.nodes.workspace.store.run_folder import (
    DATA_DIR_VARIABLE,
    folder_name,
    idle_workspaces,
    is_due,
    remove_run_folder,
    run_folder,
    run_folder_path,
    workspace_folder,
    workspace_folder_path,
)
from tests.doubles.system_calls import noted, replaced

pytestmark = pytest.mark.usefixtures("no_open_handles")


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def folder_error(path: Path) -> ToolError:
    return ToolError(
        code=ToolErrorCode.PERMISSION_DENIED,
        message=(
            f"The run's folder {str(path)!r} cannot be used: it, or the folder above it, is a link, a file, or belongs"
            " to somebody else. Remove it, or set MENDGRAPH_DATA_DIR to one of your folders."
        ),
    )


def test_folder_is_created_private_and_found_again(tmp_path: Path) -> None:
    for umask in (0o000, 0o077):
        base, old = tmp_path / str(umask) / "data", os.umask(umask)
        try:
            path = run_folder("thread 1", str(base))
        finally:
            os.umask(old)
        assert path == str(base / "runs" / folder_name("thread 1"))
        assert [mode(path_to_check) for path_to_check in (base, base / "runs", Path(path))] == [0o700] * 3
        (Path(path) / "kept").write_text("x")
        Path(path).chmod(0o755)
        Path(path).parent.chmod(0o777)
        assert run_folder("thread 1", str(base)) == path
        assert ([mode(Path(path)), mode(Path(path).parent)], os.listdir(path)) == ([0o700, 0o700], ["kept"])


def test_data_folder_variable_sets_the_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(DATA_DIR_VARIABLE, str(tmp_path / "mine"))
    assert run_folder("t") == str(tmp_path / "mine" / "runs" / folder_name("t"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv(DATA_DIR_VARIABLE, "~/mine")
    assert run_folder("t") == str(tmp_path / "home" / "mine" / "runs" / folder_name("t"))
    assert run_folder("t", str(tmp_path / "given")) == str(tmp_path / "given" / "runs" / folder_name("t"))


@given(st.text(), st.text())
def test_every_thread_has_its_own_harmless_folder_name(one: str, two: str) -> None:
    assert re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,56}", folder_name(one))
    assert (folder_name(one).casefold() == folder_name(two).casefold()) is (one == two)


def test_folder_name_never_changes() -> None:
    """It ends with the first digits of the SHA-256 of the thread's name, as of sha256sum."""
    assert folder_name("thread 1") == "thread-1-e403d0b0e15639ba"


def test_new_folder_is_synced_to_disk(tmp_path: Path) -> None:
    with noted("fsync") as synced:
        path = Path(str(run_folder("t", str(tmp_path))))
    assert synced == [("fsync", str(tmp_path)), ("fsync", str(path.parent))]


def test_folder_of_another_user_is_refused(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir(mode=0o700)
    with replaced(geteuid=lambda: tmp_path.stat().st_uid + 1):
        assert run_folder("t", str(tmp_path)) == folder_error(tmp_path / "runs" / folder_name("t"))
    assert os.listdir(tmp_path / "runs") == []


def test_pruning_is_due_once_an_hour(tmp_path: Path) -> None:
    assert is_due(str(tmp_path))
    for seconds, due in ((0, False), (3_500, False), (3_700, True)):
        then = time.time() - seconds
        os.utime(tmp_path / "retained", (then, then))
        assert is_due(str(tmp_path)) is due
    assert mode(tmp_path / "retained") == 0o600


def test_workspace_is_idle_after_a_day_without_a_change(tmp_path: Path) -> None:
    for name, seconds in (("old", 90_000), ("new", 80_000), ("never locked", 90_000)):
        folder = tmp_path / name
        folder.mkdir()
        if name != "never locked":
            (folder / "run.lock").touch()
        then = time.time() - seconds
        os.utime(folder, (then, then))

    assert idle_workspaces(str(tmp_path / "own")) == [str(tmp_path / "old")]
    assert idle_workspaces(str(tmp_path / "own")) == []


def test_path_that_is_not_a_folder_is_refused_and_unchanged(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir(mode=0o755)
    for number, (kind, is_above) in enumerate(product(("link", "file"), (True, False))):
        base = tmp_path / str(number)
        path = base / "runs" / folder_name("t")
        place = path.parent if is_above else path
        place.parent.mkdir(parents=True)
        if kind == "link":
            place.symlink_to(outside)
        else:
            place.write_text("x")
        assert run_folder("t", str(base)) == folder_error(path)
        assert (os.listdir(outside), mode(outside)) == ([], 0o755)


def test_link_in_place_of_a_used_folder_is_refused(tmp_path: Path) -> None:
    path = Path(str(run_folder("t", str(tmp_path))))
    path.rename(tmp_path / "moved")
    path.symlink_to(tmp_path / "moved")
    assert run_folder("t", str(tmp_path)) == folder_error(path)
    path.unlink()
    assert (run_folder("t", str(tmp_path)), mode(path)) == (str(path), 0o700)


def test_unusable_place_is_a_typed_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    where = os.path.join("runs", folder_name("t"))
    assert run_folder("t", str(tmp_path / "file")) == ToolError(
        code=ToolErrorCode.INVALID_ARGUMENT,
        message=(
            f"Cannot make the run's folder {str(tmp_path / 'file' / where)!r}:"
            " a part of it is a file where a directory is needed."
        ),
    )
    assert run_folder("t", "/a\x00b") == ToolError(
        code=ToolErrorCode.INVALID_ARGUMENT,
        message=f"The run's folder cannot be '/a\\x00b/{where}': no folder can have this name.",
    )


def test_workspace_has_one_folder_for_all_spellings_of_its_path(tmp_path: Path) -> None:
    (tmp_path / "pro ject").mkdir()
    (tmp_path / "link").symlink_to("pro ject")
    base = str(tmp_path / "data")
    path = workspace_folder(str(tmp_path / "pro ject"), base)
    assert path == workspace_folder(str(tmp_path / "link"), base)
    assert path == workspace_folder_path(f"{tmp_path}/link/../pro ject/", base)
    digest = hashlib.sha256(os.fsencode(tmp_path / "pro ject")).hexdigest()
    assert path == str(tmp_path / "data" / "workspaces" / f"pro-ject-{digest[:16]}")
    assert mode(Path(path)) == 0o700


def test_folder_of_a_run_is_removed_with_its_content(tmp_path: Path) -> None:
    path, outside = Path(str(run_folder("t", str(tmp_path)))), tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").write_text("x" * 1_000)
    (path / "deep").mkdir()
    (path / "deep" / "one").write_text("x" * 5)
    (path / "two").write_text("x" * 7)
    (path / "link").symlink_to(outside)
    neighbour = run_folder("u", str(tmp_path))
    assert remove_run_folder("t", str(tmp_path)) == 12
    assert (path.exists(), os.listdir(outside), os.path.isdir(str(neighbour))) == (False, ["kept"], True)


def test_path_that_is_not_a_folder_is_not_removed(tmp_path: Path) -> None:
    path, outside = Path(run_folder_path("t", str(tmp_path))), tmp_path / "outside"
    path.parent.mkdir()
    outside.mkdir()
    (outside / "kept").write_text("x")
    for target in (outside, ""):
        if target:
            path.symlink_to(target)
        else:
            path.write_text("x")
        with pytest.raises(NotADirectoryError):
            remove_run_folder("t", str(tmp_path))
        assert (os.path.lexists(path), os.listdir(outside)) == (True, ["kept"])
        path.unlink()
