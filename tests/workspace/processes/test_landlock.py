"""The sandbox "landlock": programs work on a copy of the workspace, and their changes are applied to it."""

import os
import stat
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from mendgraph.nodes.execute_tools.commands.commands import CommandResult
from mendgraph.nodes.records import ToolError
from mendgraph.nodes.workspace.files.deadline import CancellationScope, ScopeOverError
from mendgraph.nodes.workspace.sandboxes import launcher, workspace_copy
from mendgraph.nodes.workspace.sandboxes.landlock import Landlock
from mendgraph.nodes.workspace.sandboxes.private_folder import PrivateFolder
from mendgraph.nodes.workspace.sandboxes.sandbox import Guarantee
from mendgraph.nodes.workspace.sandboxes.workspace_copy import LARGEST_TEXT
from tests.doubles.system_calls import before_each
from tests.workspace.processes.command_place import Place, command_place, is_alive, unique_seconds

MEMORY = "/dev/shm"


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    with command_place(tmp_path, "landlock") as opened_place:
        yield opened_place


def errors(place: Place, script: str) -> list[str]:
    """The lines that a shell script prints on its error output."""
    return place.result("sh", "-c", script).stderr.head.decode().splitlines()


def test_guarantees_depend_on_the_landlock_version(monkeypatch: pytest.MonkeyPatch) -> None:
    for version, starts, holds_signals in ((0, False, False), (2, False, False), (3, True, False), (6, True, True)):
        monkeypatch.setattr(launcher, "landlock_version", lambda version=version: version)
        sandbox = Landlock()
        assert (sandbox.problem() is None) is starts
        assert (Guarantee.SIGNALS in sandbox.guarantees) is holds_signals


def test_new_folder_is_not_removed_by_another_process_before_it_is_locked() -> None:
    began: list[str] = []
    others: list[PrivateFolder] = []

    def start_other_first(name: str, *_: object) -> None:
        if "/mendgraph-new-sandbox-" in str(name) and not began:
            began.append(name)
            others.append(PrivateFolder())

    with before_each("open", start_other_first):
        private_folder = PrivateFolder()

    assert os.path.isdir(private_folder.folder("work"))
    assert os.path.isdir(others[0].folder("work"))


# --- Changes


def test_changes_of_a_program_are_applied(place: Place) -> None:
    root = place.root
    (root / "old/deep").mkdir(parents=True)
    (root / "old/deep/gone.txt").write_text("gone\n")
    (root / "file").write_text("file\n")

    place.says(
        "echo new > src/a.py; mkdir -p new/deep; echo x > new/deep/x; touch -d @1000 new/deep/x; rm -r old;"
        "ln -s src/a.py link; printf '#!/bin/sh' > run.sh; chmod 755 run.sh; rm file; mkdir file; echo y > file/y;"
        "chmod 700 new"
    )

    assert (root / "src/a.py").read_text() == "new\n"
    assert (root / "new/deep/x").stat().st_mtime == 1000
    assert not (root / "old").exists()
    assert os.readlink(root / "link") == "src/a.py"
    assert stat.S_IMODE((root / "run.sh").stat().st_mode) == 0o755
    assert (root / "file/y").read_text() == "y\n"
    assert stat.S_IMODE((root / "new").stat().st_mode) == 0o700


def test_next_program_sees_earlier_changes_by_programs_and_others(place: Place) -> None:
    place.says("echo one > src/b.py; echo two > src/c.py")
    (place.root / "src/b.py").write_text("edited\n")
    (place.root / "src/c.py").unlink()

    assert place.says("cat src/b.py; ls src") == "edited\na.py\nb.py\n"


def test_unchanged_file_is_not_written(place: Place) -> None:
    path = place.root / "src/a.py"
    before = path.stat()
    place.says("cat src/a.py; echo x > other")

    after = path.stat()
    assert (after.st_ino, after.st_ctime_ns) == (before.st_ino, before.st_ctime_ns)


def test_change_below_a_protected_name_is_reported_and_not_applied(place: Place) -> None:
    lines = errors(place, "rm .git; mkdir .git; echo evil > .git/config; mkdir sub; git init -q sub; echo x > seen")

    assert lines[-2:] == [
        "mendgraph: .git was not changed in the workspace",
        "mendgraph: sub/.git was not changed in the workspace",
    ]
    assert (place.root / ".git/config").read_text() == "canary of .git/config\n"
    assert os.listdir(place.root / "sub") == []
    assert (place.root / "seen").exists()


def test_files_and_folders_without_permissions_are_applied(place: Place) -> None:
    place.says("mkdir locked; echo x > locked/file; chmod 000 locked/file locked; chmod 000 src/a.py")

    modes = [stat.S_IMODE((place.root / name).stat().st_mode) for name in ("locked", "src/a.py")]
    assert modes == [0, 0]
    (place.root / "locked").chmod(0o700)
    assert stat.S_IMODE((place.root / "locked/file").stat().st_mode) == 0


def test_link_that_replaces_a_folder_is_not_followed(place: Place, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "a.py").write_text("outside\n")

    place.says(f"mkdir d; echo x > d/a.py; rm -r d; ln -s {outside} d; echo evil > d/a.py; cat d/a.py > copy")
    place.says("echo evil > d/a.py; rm d/a.py")

    assert (outside / "a.py").read_text() == "outside\n"
    assert (place.root / "copy").read_text() == ""


def test_absolute_workspace_path_works_in_arguments_texts_and_links(place: Place) -> None:
    root = place.root
    (root / "script").write_text(f"#!/bin/sh\ncat {root}/src/a.py\n")
    (root / "script").chmod(0o755)
    (root / "link").symlink_to(root / "src/a.py")
    text = place.says(f"./script; cat link {root}/src/a.py; echo {root}/x > made; ln -s $PWD/src far; pwd")

    assert text == "canary of src/a.py\n" * 3 + f"{root}\n"
    assert (root / "made").read_text() == f"{root}/x\n"
    assert os.readlink(root / "far") == f"{root}/src"
    assert (root / "script").read_text() == f"#!/bin/sh\ncat {root}/src/a.py\n"


@pytest.mark.skipif(
    not os.path.isdir(MEMORY) or os.stat(MEMORY).st_dev == os.stat(tempfile.gettempdir()).st_dev,
    reason="all folders are on one file system",
)
def test_copy_on_another_file_system_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", MEMORY)
    with command_place(tmp_path, "landlock") as place:
        (place.root / "large").write_bytes(b"x" * 2 * LARGEST_TEXT)
        place.says("cat large large > larger")

        assert (place.root / "larger").stat().st_size == 4 * LARGEST_TEXT


def test_nothing_is_applied_after_a_cancelled_call(place: Place) -> None:
    scope, mark = CancellationScope(), unique_seconds()

    def give_up() -> None:
        while not is_alive(f"sleep {mark}"):
            time.sleep(0.01)
        scope.revoke()

    threading.Thread(target=give_up).start()
    with pytest.raises(ScopeOverError):
        place.commands.in_scope(scope).run(["sh", "-c", f"echo changed > src/a.py; sleep {mark}"])

    assert (place.root / "src/a.py").read_text() == "canary of src/a.py\n"
    assert place.says("cat src/a.py") == "canary of src/a.py\n"


def test_number_of_files_is_bounded_before_and_after_a_program(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workspace_copy, "MOST_ENTRIES", 20)
    lines = errors(place, "for i in $(seq 30); do echo x > $i; done")
    assert lines == ["mendgraph: the workspace was not changed: there are more than 20 files and folders"]
    assert not (place.root / "1").exists()

    for number in range(30):
        (place.root / str(number)).touch()
    refusal = place.commands.run(["true"])
    assert isinstance(refusal, ToolError)
    assert "cannot be copied for the sandbox 'landlock': there are more than 20 files and folders" in refusal.message


def test_read_only_program_cannot_write_into_the_copy(place: Place) -> None:
    result = place.commands.read_only({}, {}).run(["sh", "-c", "touch new"])
    assert isinstance(result, CommandResult)
    assert (result.exit_code, b"Permission denied" in result.stderr.head) == (1, True)


# --- What a program cannot reach


def test_program_cannot_inspect_the_agent(place: Place) -> None:
    names = " ".join(f"/proc/{os.getpid()}/{name}" for name in ("environ", "mem", "cwd/x", "root/etc/shadow", "fd/0"))
    text = place.says(f"for name in {names}; do head -c 1 $name 2>/dev/null && echo read $name; done; echo done")

    assert text == "done\n"


def test_file_outside_cannot_be_opened_linked_listed_or_replaced(place: Place, tmp_path: Path) -> None:
    secret = tmp_path / "outside/secret"
    secret.parent.mkdir()
    secret.write_text("canary\n")
    attacks = (
        "cat {0}; ls {0}; ln {0} hard; cat hard; cp -r {0} copied; cat copied; mv {0} moved; rm -rf {0};"
        "truncate -s 0 {0}; echo x >> {0}; echo x > {0}/new"
    )

    text = place.says(f"{attacks.format(secret)}; {attacks.format(secret.parent)}")

    assert "canary" not in text
    assert os.listdir(secret.parent) == ["secret"]
    assert secret.read_text() == "canary\n"


def test_program_can_create_only_socket_pairs(place: Place) -> None:
    program = (
        "import socket\n"
        "socket.socketpair()\n"
        "for family in (socket.AF_UNIX, socket.AF_INET, socket.AF_INET6, socket.AF_NETLINK):\n"
        "    try: socket.socket(family, socket.SOCK_RAW if family == socket.AF_NETLINK else socket.SOCK_STREAM)\n"
        "    except OSError: pass\n"
        "    else: print(family.name)\n"
    )
    result = place.result("python3", "-c", program)

    assert (result.exit_code, result.stdout.head) == (0, b"")
