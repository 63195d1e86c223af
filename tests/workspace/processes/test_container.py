"""What the sandbox "container" enforces, and what the container around it must enforce."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from mendgraph.nodes.execute_tools.commands.commands import CommandResult
from mendgraph.nodes.records import ToolError, ToolErrorCode
from mendgraph.nodes.workspace.sandboxes.backends import AUTOMATIC
from tests.workspace.processes.command_place import Place, command_place


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    with command_place(tmp_path, "container") as opened_place:
        yield opened_place


def test_program_works_directly_in_the_workspace(place: Place) -> None:
    text = place.says("pwd; echo new > src/new.py; cat .env; echo changed > .git/config")

    assert text == f"{place.root}\ncanary of .env\n"  # denied files are not hidden
    assert (place.root / "src/new.py").read_text() == "new\n"
    assert (place.root / ".git/config").read_text() == "changed\n"  # nor is this refused


def test_home_and_temporary_folder_are_private_and_empty_each_time(place: Place) -> None:
    script = 'ls -A ~ "$TMPDIR"; echo x > ~/a; echo x > "$TMPDIR/a"; stat -c %a "$TMPDIR/.."'
    first = place.says(script)
    second = place.says(script)

    assert first == second
    assert first.endswith("\n700\n")
    assert first.startswith("/run/home:\n")


def test_program_has_no_privileges_and_no_handles_of_the_agent(place: Place) -> None:
    text = place.says("grep -E '^(Cap...|NoNewPrivs):' /proc/self/status; ls /proc/self/fd")

    assert text.count("0000000000000000") == 5
    assert "NoNewPrivs:\t1" in text
    assert text.splitlines()[-4:] == ["0", "1", "2", "3"]  # 3 is that of the listing


def test_program_cannot_signal_its_supervisor_the_agent_or_all_processes(place: Place) -> None:
    script = "for p in $PPID {agent} -$PPID -{agent} -1; do kill -0 $p && echo allowed; done; kill -0 $$ && echo own"
    text = place.says(script.format(agent=os.getpid()))

    assert "allowed" not in text
    assert text.endswith("own\n")


def test_given_text_has_a_private_path_that_no_output_shows(place: Place) -> None:
    commands = place.commands.read_only({"/run/given/a.txt": b"given\n"}, {"MODE": "check"})
    script = 'cat /run/given/a.txt; echo "$0" $MODE'
    result = commands.run(["sh", "-c", script, "/run/given/a.txt"])

    assert isinstance(result, CommandResult)
    assert result.stdout.head.decode() == "given\n/run/given/a.txt check\n"


def test_earlier_versions_of_files_are_refused_and_files_unchanged(place: Place) -> None:
    commands = place.commands.read_only({f"{place.root}/src/a.py": b"then\n"}, {})
    refusal = commands.run(["sh", "-c", "cat src/a.py"])

    assert isinstance(refusal, ToolError)
    assert refusal.code is ToolErrorCode.UNAVAILABLE
    assert (place.root / "src/a.py").read_text() == "canary of src/a.py\n"


def test_container_is_never_chosen_automatically() -> None:
    assert "container" not in AUTOMATIC
