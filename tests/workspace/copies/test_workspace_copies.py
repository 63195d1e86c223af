import errno
import os
import stat
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st

from mendgraph.nodes.records import ToolError
from mendgraph.nodes.workspace.copies.workspace_copies import (
    BEGUN,
    FINISHED,
    Copy,
    compare_copy,
    delete_copy,
    make_copy,
    open_copy,
)
from tests.doubles.system_calls import before_each, failing, noted
from tests.extent import slow
from tests.memory_folder import memory_folder
from tests.workspace.copies.copy_actions import apply_patch, error_of, made_copy, patch_of
from tests.workspace.processes.git_places import Tree, commit_all, git, head, repository, tree, write


def test_links_to_installed_folders_are_not_changes(tmp_path: Path) -> None:
    """The project's ignore pattern ends with a slash, so it does not match a link."""
    names = (".venv", "venv")
    project = repository(tmp_path / "project", {"a.txt": "a", ".gitignore": "".join(f"{name}/\n" for name in names)})
    write(project, {f"{name}/bin/python": "1" for name in names})

    copy = made_copy(project, tmp_path / "copy")

    assert [Path(copy.root, name).readlink() for name in names] == [project / name for name in names]
    assert copy.installed == {name: str(project / name) for name in names}
    assert compare_copy(copy.folder) == b""
    delete_copy(copy.folder)
    assert all((project / name / "bin/python").exists() for name in names)


def test_installed_packages_are_links_and_those_of_the_project_lead_into_the_copy(tmp_path: Path) -> None:
    files = {"package.json": "{}", "web/package.json": "{}", "core/a.js": "1", ".gitignore": "node_modules\n"}
    project = repository(tmp_path / "project", files)
    installed = project / "node_modules"
    write(project, {f"{folder}/x.js": "1" for folder in ("node_modules/x", "node_modules/.vite", "web/node_modules/y")})
    (installed / "@acme").mkdir()
    (installed / "@acme/core").symlink_to("../../core")

    copy = made_copy(project, tmp_path / "copy")
    root = Path(copy.root)
    write(root, {"node_modules/.vite/results.json": "1", "core/a.js": "2"})

    assert (root / "node_modules/x").readlink() == installed / "x"
    assert (root / "node_modules/@acme/core/a.js").read_text() == "2"
    assert (root / "web/node_modules/y").readlink() == project / "web/node_modules/y"
    assert copy.installed == {"node_modules": str(installed), "web/node_modules": str(project / "web/node_modules")}
    assert (installed / ".vite/x.js").exists()
    assert b"node_modules" not in patch_of(copy)


def test_environments_of_projects_in_folders_are_links_except_committed_ones(tmp_path: Path) -> None:
    files = {"api/pyproject.toml": "", "jobs/pyproject.toml": "", "plain/a.py": "", ".gitignore": "venv\n"}
    project = repository(tmp_path / "project", files)
    secret = write(tmp_path / "secret", {"pyvenv.cfg": ""})
    (project / "jobs/.venv").symlink_to(secret)
    git(project, "add", ".")
    git(project, "commit", "-qm", "A link to any folder")
    write(project, {f"{folder}/venv/bin/python": "" for folder in ("api", "plain")})

    copy = made_copy(project, tmp_path / "copy")

    assert copy.installed == {"api/venv": str(project / "api/venv")}
    assert Path(copy.root, "api/venv").readlink() == project / "api/venv"


def test_workspace_in_a_subfolder_has_links_in_its_packages(tmp_path: Path) -> None:
    project = repository(tmp_path / "project", {"app/web/package.json": "{}", ".gitignore": "node_modules\n"})
    write(project, {"app/web/node_modules/x/x.js": "1"})

    copy = made_copy(project / "app", tmp_path / "copy")

    assert Path(copy.root, "web/node_modules/x/x.js").exists()
    assert copy.installed == {"web/node_modules": str(project / "app/web/node_modules")}


def test_links_of_a_repository_are_not_installed_folders(tmp_path: Path) -> None:
    private = write(tmp_path / "private", {"pyvenv.cfg": "", "diary.txt": "x", "node_modules/lib/x.js": "x"})
    project = repository(tmp_path / "project", {"a.txt": "a", "web/package.json": "{}"})
    before = head(project)
    (project / "node_modules").mkdir()
    (project / "node_modules/lib").symlink_to(private / "node_modules/lib")
    (project / ".venv").symlink_to(private)
    git(project, "add", "--all", "--force")
    git(project, "commit", "-qm", "links")
    (project / "web/node_modules").symlink_to(private / "node_modules")
    (project / "venv").symlink_to(private / "node_modules")

    assert made_copy(project, tmp_path / "copy").installed == {}
    earlier = make_copy(str(project), before, str(tmp_path / "earlier"))
    assert isinstance(earlier, Copy)
    assert earlier.installed == {"node_modules": str(project / "node_modules")}


def test_environment_of_the_user_may_be_elsewhere(tmp_path: Path) -> None:
    environment = write(tmp_path / "environments/project", {"pyvenv.cfg": ""})
    project = repository(tmp_path / "node_modules/project", {"a.txt": "a"})
    (project / ".venv").symlink_to(environment)
    (project / "node_modules/x").mkdir(parents=True)

    copy = made_copy(project, tmp_path / "copy")

    assert copy.installed == {".venv": str(environment), "node_modules": str(project / "node_modules")}
    Path(copy.root, ".venv").unlink()
    Path(copy.root, ".venv").symlink_to(tmp_path)
    assert made_copy(project, tmp_path / "copy").installed == copy.installed


def test_unfinished_copy_of_another_source_is_replaced(tmp_path: Path) -> None:
    one, two = repository(tmp_path / "one"), repository(tmp_path / "two")

    def be_killed(_: str, target: str) -> None:
        if target == FINISHED:
            raise KeyboardInterrupt

    with before_each("rename", be_killed), pytest.raises(KeyboardInterrupt):
        make_copy(str(one), "", str(tmp_path / "copy"))
    assert git(one, "worktree", "list").count("\n") == 2
    made_copy(two, tmp_path / "copy")
    assert [git(main, "worktree", "list").count("\n") for main in (one, two)] == [1, 2]


def test_untracked_folder_is_copied_as_a_folder(tmp_path: Path) -> None:
    git(tmp_path, "init", "--quiet")
    write(tmp_path, {"in/a": "a"})
    assert tree(Path(made_copy(tmp_path / "in", tmp_path / "copy").root)) == {"a": (False, b"a")}
    git(tmp_path, "add", "in/a")
    assert "has no commit yet" in error_of(make_copy(str(tmp_path / "in"), "", str(tmp_path / "other")))
    main = write(repository(tmp_path / "main"), {"new/a": "a"})
    assert tree(Path(made_copy(main / "new", tmp_path / "new copy").root)) == {"a": (False, b"a")}
    refused = error_of(make_copy(str(main / "new"), "HEAD", str(tmp_path / "no copy")))
    assert refused == f"not_found: The folder 'new' is not in the commit {head(main)} of its repository."


def test_file_is_refused_as_a_workspace(tmp_path: Path) -> None:
    write(tmp_path, {"a.zip": "a"})
    refused = error_of(make_copy(str(tmp_path / "a.zip"), "", str(tmp_path / "copy")))
    assert refused == f"invalid_argument: The workspace '{tmp_path}/a.zip' is not a folder: unpack an archive first."


def test_full_disk_is_reported(tmp_path: Path) -> None:
    main = repository(tmp_path / "main")
    copy = made_copy(main, tmp_path / "one")
    with failing("rename", number=errno.ENOSPC):
        assert error_of(make_copy(str(main), "", str(tmp_path / "two"))).endswith("the disk is full.")
    with failing("unlink", number=errno.ENOSPC):
        message = f"io_error: Cannot compare the copy in '{copy.folder}': the disk is full."
        assert error_of(compare_copy(copy.folder)) == message
    with failing("listdir", number=errno.ENOSPC):
        message = f"io_error: Cannot remove the copy in '{copy.folder}': the disk is full."
        assert error_of(delete_copy(copy.folder)) == message
    assert (delete_copy(copy.folder), open_copy(copy.folder)) == (None, None)


@slow
def test_moved_copy_is_replaced_by_a_new_one(tmp_path: Path) -> None:
    main = repository(tmp_path / "main")
    copy = made_copy(main, tmp_path / "one")
    write(Path(copy.root), {"half-done": "x"})
    (tmp_path / "one").rename(tmp_path / "two")
    moved = made_copy(main, tmp_path / "two")
    assert (moved.root, tree(Path(moved.root)), patch_of(moved)) == (
        str(tmp_path / "two/workspace"),
        tree(Path(made_copy(main, tmp_path / "three").root)),
        b"",
    )
    write(Path(moved.root), {"half-done": "x"})
    assert patch_of(made_copy(main, tmp_path / "two")) != b""


def test_folder_without_a_copy_is_reported(tmp_path: Path) -> None:
    folder = str(tmp_path / "one")
    assert (open_copy(folder), delete_copy(folder)) == (None, None)
    assert error_of(compare_copy(folder)).startswith("not_found: ")
    os.mkdir(folder)
    assert error_of(compare_copy(folder)) == f"not_found: There is no finished copy of a workspace in '{folder}'."
    assert delete_copy(folder) is None
    write(tmp_path, {"file": "x"})
    for refused in (make_copy(folder, "", str(tmp_path / "file")), delete_copy(str(tmp_path / "file"))):
        assert isinstance(refused, ToolError)
    assert tree(tmp_path) == {"file": (False, b"x")}


NAMES = st.sampled_from(
    [
        "a",
        "b",
        "d",
        "d/a",
        "d/b",
        "d/e/f",
        "ä ö",
        'quo"te',
        "tab\t",
        "new\nline",
        "back\\slash",
        " lead",
        "-x",
        "e/\udcff",
    ]
)
CONTENTS = st.sampled_from(
    [b"", b"a\n", b"a\nb\n", b"no newline", b"\r\n mixed\n\r", b"\0\1\2" * 50, "ä\n".encode(), b"line\n" * 30, b"-- \n"]
)
ENTRIES = st.tuples(st.sampled_from(["file", "file", "program", "link"]), CONTENTS)
TREES = st.dictionaries(NAMES, ENTRIES, max_size=6)


def set_files(folder: Path, entries: dict[str, tuple[str, bytes]]) -> None:
    """Replace the files of the folder by these; a file whose path is a folder of another one gets a suffix."""
    for above, folders, names in os.walk(folder, topdown=False):
        for name in (*names, *folders):
            path = Path(above, name)
            if path.name == ".git" or ".git" in path.relative_to(folder).parts:
                continue
            path.rmdir() if stat.S_ISDIR(path.lstat().st_mode) else path.unlink()
    for name, (kind, content) in entries.items():
        path = folder / name
        if any(other != name and (other.startswith(f"{name}/") or name.startswith(f"{other}/")) for other in entries):
            path = folder / f"{name}.alone"
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_dir() or path.exists():
            continue
        if kind == "link":
            path.symlink_to(os.fsdecode(content.replace(b"\0", b"") or b"nowhere"))
        else:
            path.write_bytes(content)
            path.chmod(0o755 if kind == "program" else 0o644)


@slow
@settings(max_examples=6)
@given(before=TREES, after=TREES, is_repository=st.booleans())
def test_patch_reproduces_the_tree_in_another_copy(
    before: dict[str, tuple[str, bytes]], after: dict[str, tuple[str, bytes]], is_repository: bool
) -> None:
    with memory_folder() as place:
        main = place / "main"
        main.mkdir()
        set_files(main, before)
        if is_repository:
            git(main, "init", "--quiet")
            commit_all(main)
        copy = made_copy(main, place / "one")
        assert tree(Path(copy.root)) == tree(main)
        set_files(Path(copy.root), after)
        patch = patch_of(copy)
        expected: Tree = tree(Path(copy.root))
        assert (patch == b"") == (expected == tree(main))
        apply_patch(patch, str(main))
        assert tree(main) == expected


def test_ignored_file_stays_out_of_the_patch_and_tracked_one_stays_in(tmp_path: Path) -> None:
    source = write(tmp_path / "main", {".gitignore": "old.log\nkept/\n", "old.log": "x", "kept/x": "x", "a": "a"})
    copy = made_copy(source, tmp_path / "one")
    write(Path(copy.root), {".gitignore": "a\nnew.log\n", "old.log": "y", "kept/y": "y", "a": "b", "new.log": "z"})
    assert [line for line in patch_of(copy).decode().splitlines() if line.startswith("diff")] == [
        "diff --git a/.gitignore b/.gitignore",
        "diff --git a/a b/a",
    ]
    main = repository(tmp_path / "repository", {".gitignore": "build/\n", "build/tracked": "x"})
    copy = made_copy(main, tmp_path / "two")
    write(Path(copy.root), {"build/tracked": "y", "build/not": "z"})
    assert patch_of(copy).count(b"diff --git") == 1
    (Path(copy.root) / "build/tracked").unlink()
    assert b"deleted file" in patch_of(copy)


def test_workspace_settings_do_not_change_a_patch(tmp_path: Path) -> None:
    copy = made_copy(repository(tmp_path / "main"), tmp_path / "one")
    root = Path(copy.root)
    attributes = "* text eol=crlf diff=own filter=own working-tree-encoding=UTF-16 ident\n*.txt -diff binary\n"
    write(root, {".gitattributes": attributes, "c.txt": "$Id$\r\nx\n", ".gitconfig": "[core]\n\tx = y\n"})
    git(root, "init", "--quiet", "inner")
    write(root, {"inner/d.txt": "d\n"})
    patch = patch_of(copy)
    assert b"+$Id$\r\n+x\n" in patch
    assert b"diff --git a/inner/d.txt b/inner/d.txt" in patch
    assert b"inner/.git" not in patch


def test_patch_has_renames_and_binary_files(tmp_path: Path) -> None:
    lines = "".join(f"line {number}\n" for number in range(30))
    copy = made_copy(write(tmp_path / "main", {"old.txt": lines, "image": b"\0\1"}), tmp_path / "one")
    root = Path(copy.root)
    (root / "old.txt").rename(root / "new.txt")
    (root / "image").write_bytes(b"\0\2")

    patch = patch_of(copy)

    assert b"rename from old.txt\nrename to new.txt\n" in patch
    assert b"GIT binary patch" in patch
    assert b"line 1" not in patch


def test_marker_of_a_finished_copy_is_private_and_synced(tmp_path: Path) -> None:
    with noted("fsync", "rename") as calls:
        copy = made_copy(write(tmp_path / "main", {"a": "1"}), tmp_path / "one")

    assert stat.S_IMODE(Path(copy.folder, FINISHED).stat().st_mode) == 0o600
    assert calls[-3:] == [("fsync", f"{copy.folder}/.{FINISHED}.new"), ("rename", FINISHED), ("fsync", copy.folder)]


def test_marker_of_an_unfinished_copy_is_removed_last(tmp_path: Path) -> None:
    copy = made_copy(repository(tmp_path / "main"), tmp_path / "one")
    with noted("unlink", "rmdir") as calls:
        assert delete_copy(copy.folder) is None
    removed = [name for _, name in calls]
    assert removed[-2:] == [BEGUN, copy.folder]
    assert removed.index("workspace") < removed.index(BEGUN)


def test_changed_file_of_the_same_size_and_time_is_found(tmp_path: Path) -> None:
    copy = made_copy(write(tmp_path / "main", {"a": "1"}), tmp_path / "one")
    path = Path(copy.root) / "a"
    before = path.stat()
    path.write_bytes(b"2")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert b"+2" in patch_of(copy)


def test_comparison_is_repeatable_after_a_kill(tmp_path: Path) -> None:
    copy = made_copy(write(tmp_path / "main", {"a": "a", ".gitignore": "x [1]\n"}), tmp_path / "one")
    (tmp_path / "one/base.git/index.lock").touch()
    write(Path(copy.root), {".gitignore": "a\n", "x [1]": "x"})
    (Path(copy.root) / "a").unlink()
    first = patch_of(copy)
    assert b"deleted file" in first
    write(Path(copy.root), {"a": "b"})
    assert b"-a\n" in patch_of(copy).replace(b"\n\\ No newline at end of file", b"")
    assert b"deleted file" not in patch_of(copy)


def test_only_a_folder_with_a_copy_is_emptied(tmp_path: Path) -> None:
    other = write(tmp_path / "other", {"x": "x"})
    assert error_of(delete_copy(str(other))).startswith("conflict: ")
    assert os.listdir(other) == ["x"]
    for note in (FINISHED, BEGUN):
        copy = write(tmp_path / "copy", {note: "{}", "workspace/deep/file": "x"})
        assert (delete_copy(str(copy)), copy.exists()) == (None, False)


# --- Sources


def test_converted_files_are_compared_byte_for_byte(tmp_path: Path) -> None:
    main = tmp_path / "main"
    main.mkdir()
    git(main, "init", "--quiet", "--object-format=sha256")
    commit_all(write(main, {"a.txt": "1\n2\n", "b.py": "b\n", ".gitattributes": "*.txt text eol=crlf\n"}))
    converted = made_copy(main, tmp_path / "one")
    assert (converted.base, len(converted.base)) == (head(main), 64)
    assert tree(Path(converted.root))["a.txt"] == (False, b"1\r\n2\r\n")
    assert compare_copy(converted.folder) == b""


def modes(root: Path) -> dict[str, tuple[int, int]]:
    files = {path.relative_to(root).as_posix(): path.lstat() for path in root.rglob("*") if not path.is_symlink()}
    return {name: (stat.S_IMODE(status.st_mode), status.st_mtime_ns) for name, status in files.items()}


def test_files_folders_links_modes_and_times_are_copied(tmp_path: Path) -> None:
    main = write(tmp_path / "main", {"a": "a", "d/e/run": "x" * 100_000, "odd \n\udcff": b"\0"})
    (tmp_path / "outside").write_text("canary")
    (main / "empty").mkdir()
    for name, target in (("in", "a"), ("out", str(tmp_path / "outside")), ("up", "../outside"), ("d/dangling", "no")):
        (main / name).symlink_to(target)
    (main / "folders").symlink_to("d")
    (main / "d/e/run").chmod(0o755)
    (main / "a").chmod(0o600)
    os.utime(main / "d/e", ns=(1, 2_000_000_003))
    (main / "d/e").chmod(0o555)
    copy = made_copy(main, tmp_path / "copy")
    assert (tree(Path(copy.root)), modes(Path(copy.root))) == (tree(main), modes(main))


def test_special_files_and_named_folders_are_left_out(tmp_path: Path) -> None:
    main = write(tmp_path / "main", {"a": "a", "out/b": "b"})
    os.mkfifo(main / "pipe")
    copy = make_copy(str(main), "", str(main / "copy"), without=[str(main / "out"), str(main / "missing")])
    assert isinstance(copy, Copy)
    assert copy.notes == ("Special files were left out, such as 'pipe'.",)
    assert tree(Path(copy.root)) == {"a": (False, b"a")}
