import os
import shutil
import subprocess
from pathlib import Path

import pytest

from mendgraph.nodes.language.os_errors import is_disk_full
from mendgraph.nodes.records import ToolError, ToolErrorCode
from mendgraph.nodes.workspace.processes.git import (
    Repository,
    absent_submodules,
    add_worktree,
    find_commit,
    find_repository,
    find_uncommitted,
    git_environment,
    git_failure,
    malformed_revision,
    remove_worktree_records,
    run_git,
    worktree_name,
)
from mendgraph.nodes.workspace.processes.processes import ProcessResult
from tests.workspace.processes.git_places import commit_all, git, head, repository, repository_of, write

SETTINGS = {
    "core.hooksPath": "/dev/null",
    "core.fsmonitor": "false",
    "core.untrackedCache": "false",
    "core.autocrlf": "false",
    "core.attributesFile": "/dev/null",
    "core.excludesFile": "/dev/null",
    "core.quotePath": "true",
    "gc.auto": "0",
    "maintenance.auto": "false",
    "protocol.allow": "never",
    "submodule.recurse": "false",
    "checkout.workers": "1",
    "advice.detachedHead": "false",
}
VARIABLES = {
    "LC_ALL": "C",
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_ATTR_NOSYSTEM": "1",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_ASKPASS": "/bin/false",
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_NO_REPLACE_OBJECTS": "1",
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_LITERAL_PATHSPECS": "1",
    **{f"GIT_{who}_NAME": "mendgraph" for who in ("AUTHOR", "COMMITTER")},
    **{f"GIT_{who}_EMAIL": "mendgraph@localhost" for who in ("AUTHOR", "COMMITTER")},
}


def test_git_runs_only_with_these_settings_and_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/usr/bin")
    environment = git_environment((("safe.directory", "/a"), ("safe.directory", "/b")))
    count = int(environment.pop("GIT_CONFIG_COUNT"))
    pairs = [(environment.pop(f"GIT_CONFIG_KEY_{n}"), environment.pop(f"GIT_CONFIG_VALUE_{n}")) for n in range(count)]
    assert pairs == [*SETTINGS.items(), ("safe.directory", "/a"), ("safe.directory", "/b")]
    assert environment == {"PATH": "/usr/bin", **VARIABLES}


def test_no_program_of_a_repository_runs(tmp_path: Path) -> None:
    main, copies, program = repository(tmp_path / "main"), tmp_path / "copies", tmp_path / "program"
    commit = head(main)
    program.write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
    program.chmod(0o755)
    for hook in ("post-checkout", "post-index-change", "reference-transaction"):
        (main / ".git/hooks" / hook).symlink_to(program)
    git(main, "config", "core.fsmonitor", str(program))
    write(main, {".gitattributes": "* filter=mine\n"})
    git(main, "config", "filter.mine.smudge", str(program))
    git(main, "config", "filter.mine.clean", str(program))

    repo = repository_of(main)
    assert find_uncommitted(repo) == ((), True)
    assert isinstance(added(main, copies, commit), str)
    assert not (tmp_path / "ran").exists()
    git(main, "status")
    assert (tmp_path / "ran").exists()  # the control


def test_worktree_is_not_locked_and_only_its_own_records_are_removed(tmp_path: Path) -> None:
    main, copies = repository(tmp_path / "main"), tmp_path / "copies"
    records = added(main, copies)
    assert isinstance(records, str)
    assert os.path.isfile(f"{records}/gitdir")
    assert not os.path.exists(f"{records}/locked")

    remove_worktree_records(records, str(tmp_path / "other"))
    assert os.path.isdir(records)
    remove_worktree_records(records, str(copies))
    assert not os.path.exists(records)


def test_missing_git_is_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    outcome = run_git(["version"], cwd="/")
    message = "The program 'git' is needed for copies of workspaces and for patches: install your system's package git."
    assert outcome == ToolError(code=ToolErrorCode.UNAVAILABLE, message=message)


def test_full_disk_in_git_is_reported_as_such() -> None:
    for stderr, reason in (
        (b"fatal: sha1 file 'x' write error. Out of diskspace\n", "the disk is full"),
        (b"fatal: write error: Disk quota exceeded\n", "the disk quota is used up"),
    ):
        failure = git_failure(ProcessResult(128, b"", stderr), "copy", "/r")
        assert failure == ToolError(code=ToolErrorCode.IO_ERROR, message=f"Cannot copy '/r': {reason}.")
        assert is_disk_full(failure)


def error(outcome: object) -> str:
    assert isinstance(outcome, ToolError), outcome
    return f"{outcome.code.value}: {outcome.message}"


def test_repository_is_found_from_its_top_subfolder_worktree_or_bare(tmp_path: Path) -> None:
    main = repository(tmp_path / "main")
    git(main, "worktree", "add", "--quiet", "--detach", str(tmp_path / "tree"))
    git(main, "clone", "--quiet", "--bare", ".", str(tmp_path / "bare.git"))
    common = str(main / ".git")
    for path, shared, prefix, is_bare in (
        (main, common, "", False),
        (main / "src", common, "src", False),
        (tmp_path / "tree/src", common, "src", False),
        (tmp_path / "bare.git", str(tmp_path / "bare.git"), "", True),
    ):
        assert repository_of(path) == Repository(str(path), shared, prefix, "sha1", is_bare)
    assert find_repository(str(tmp_path)) is None


def test_revision_is_resolved_to_a_commit(tmp_path: Path) -> None:
    main = repository(tmp_path / "main")
    first = head(main)
    git(main, "tag", "-a", "v1", "-m", "v1")
    git(main, "branch", "side")
    write(main, {"a.txt": "more"})
    commit_all(main)
    repo = repository_of(main)
    assert [find_commit(repo, name) for name in ("", "HEAD", "main")] == [head(main)] * 3
    assert [find_commit(repo, name) for name in ("HEAD~1", "v1", "side", first[:8])] == [first] * 4

    assert malformed_revision("x" * 1_000) is None
    for revision in ("--upload-pack=x", "HEAD\n", "x" * 1_001):
        refused = error(find_commit(repo, revision))
        assert refused.startswith("invalid_argument: ")
        assert refused.endswith(" is not a git revision: name a branch, a tag or a commit.")


def test_missing_revision_is_an_error(tmp_path: Path) -> None:
    main = repository(tmp_path / "main")
    assert error(find_commit(repository_of(main), "side")) == (
        f"not_found: There is no commit 'side' in the repository '{main}': name a branch, a tag or a commit that"
        " exists here (git fetch gets those of a server)."
    )


def test_damaged_index_is_an_error(tmp_path: Path) -> None:
    main = repository(tmp_path / "main")
    (main / ".git/index").write_bytes(b"no index")
    assert error(find_uncommitted(repository_of(main))).startswith(
        f"io_error: Git could not look for changes in '{main}': "
    )


def test_repository_without_commits_is_an_error(tmp_path: Path) -> None:
    git(tmp_path, "init", "--quiet")
    assert error(find_commit(repository_of(tmp_path))) == (
        f"not_found: The repository '{tmp_path}' has no commit yet: commit the files first."
    )


def test_uncommitted_changes_are_found(tmp_path: Path) -> None:
    main = repository(tmp_path / "main", {"a": "a\n" * 20, "b": "b", "c": "c", "src/d": "d", "src/e f": "e"})
    before = (main / ".git/index").read_bytes()
    os.utime(main / "a")
    assert find_uncommitted(repository_of(main)) == ((), False)
    assert (main / ".git/index").read_bytes() == before
    git(main, "mv", "a", "new name")
    write(main, {"b": "changed", "src/e f": "changed", "untracked": "x"})
    (main / "c").unlink()
    assert find_uncommitted(repository_of(main)) == (("a", "b", "c", "new name", "src/e f"), True)
    assert find_uncommitted(repository_of(main / "src")) == (("src/e f",), False)
    git(main, "clone", "--quiet", "--bare", ".", str(tmp_path / "bare.git"))
    assert find_uncommitted(repository_of(tmp_path / "bare.git")) == ((), False)


def test_repository_of_another_user_is_trusted_if_the_user_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a folder to another user: run the tests as root to try this")
    main = repository(tmp_path / "main")
    try:
        for path in (main, main / ".git"):
            shutil.chown(path, 65534)
    except OSError as refusal:
        pytest.skip(f"there is no other user in this user namespace: {refusal}")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert error(find_repository(str(main))).startswith("permission_denied: Git does not trust the repository ")
    (tmp_path / ".gitconfig").write_text(f'[safe]\n\tdirectory = /other\n\tdirectory = "{main}"\n')
    repo = repository_of(main)
    assert repo.settings == (("safe.directory", "/other"), ("safe.directory", str(main)))
    assert find_commit(repo) == repo.line("rev-parse", "HEAD")


def added(main: Path, folder: Path, commit: str = "") -> str | ToolError:
    folder.mkdir(exist_ok=True)
    return add_worktree(repository_of(main), commit or head(main), str(folder), "workspace")


def test_worktree_of_a_killed_process_is_recreated(tmp_path: Path) -> None:
    main, folder = repository(tmp_path / "main"), tmp_path / "one"
    git(main, "worktree", "add", "--lock", "--detach", str(folder / worktree_name(str(folder))))
    git(main, "worktree", "add", "--detach", str(tmp_path / "another"))
    subprocess.run(["rm", "-r", str(folder)], check=True)
    assert isinstance(added(main, folder), str)
    assert sorted(os.listdir(main / ".git/worktrees")) == ["another", worktree_name(str(folder))]


def test_worktree_that_cannot_be_created_is_an_error(tmp_path: Path) -> None:
    main = repository(tmp_path / "main")
    (main / ".git/worktrees").write_text("in the way")
    assert error(added(main, tmp_path / "one")).startswith(f"io_error: Git could not make a worktree of '{main}': ")


def test_too_old_git_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "git"
    program.write_text("#!/bin/sh\nprintf -- '--path-format=absolute\\n.git\\nfalse\\n--show-object-format\\n'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    message = "The program 'git' is too old for copies of workspaces: install 2.31 or newer."
    assert error(find_repository(str(tmp_path))) == f"unavailable: {message}"


def test_blobs_of_a_partial_clone_are_not_fetched(tmp_path: Path) -> None:
    main = repository(tmp_path / "main")
    git(main, "config", "uploadpack.allowFilter", "true")
    git(tmp_path, "clone", "--quiet", "--no-checkout", "--filter=blob:none", f"file://{main}", "partial")
    failed = added(tmp_path / "partial", tmp_path / "one")
    assert isinstance(failed, ToolError)
    assert failed.code is ToolErrorCode.IO_ERROR


def test_absent_submodules_are_empty_folders_listed_in_gitmodules(tmp_path: Path) -> None:
    names = ("lib/one", '"lib/with space"', "lib/there", "lib/stale", "lib/gone", "../out", "/etc", ".", "")
    text = "".join(f'[submodule "{name}"]\n\tpath = {name}\n\turl = x\n' for name in names)
    write(tmp_path, {".gitmodules": text, ".git": "", "lib/there/.git": "", "lib/stale/a.py": "", "src/a.py": ""})
    (tmp_path / "lib/one").mkdir()
    (tmp_path / "lib/with space").mkdir()
    assert absent_submodules(str(tmp_path)) == ("lib/one", "lib/with space")
    assert absent_submodules(str(tmp_path / "lib")) == ("one", "with space")
    assert absent_submodules(str(tmp_path / "src")) == ()
