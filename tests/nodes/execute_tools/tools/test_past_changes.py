"""A change that the journal knows of, told as the run tells it."""

from collections.abc import Callable
from functools import partial
from hashlib import sha256
from pathlib import Path

import pytest

from nodes.execute_tools.environment.change_records import FileEffect, FileState
from nodes.execute_tools.environment.workspace import Workspace
from nodes.execute_tools.tools.past_changes import describe_effect
from nodes.guard.policy import judge_path
from nodes.records import ChangeKind, FileChange

OLD, NEW = b"a = 1\n", b"a = 2\n"
DIFF = "--- a/a.py\n+++ b/a.py\n@@ -1 +1 @@\n-a = 1\n+a = 2\n"


def hashed(data: bytes) -> str:
    return sha256(data).hexdigest()


def state(data: bytes | None) -> FileState:
    return FileState() if data is None else FileState(hashed(data), 0o644)


def keeping(*kept: bytes) -> Callable[[str], bytes | None]:
    return {hashed(data): data for data in kept}.get


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return Workspace(str(tmp_path), partial(judge_path, rules=()))


@pytest.mark.parametrize(
    ("before", "after", "on_disk", "kept", "kind", "diff"),
    [
        (OLD, NEW, NEW, [OLD], ChangeKind.EDITED, DIFF),
        (None, NEW, NEW, [], ChangeKind.CREATED, "--- /dev/null\n+++ b/a.py\n@@ -0,0 +1 @@\n+a = 2\n"),
        (OLD, None, None, [OLD], ChangeKind.DELETED, "--- a/a.py\n+++ /dev/null\n@@ -1 +0,0 @@\n-a = 1\n"),
        (OLD, NEW, b"later", [OLD], ChangeKind.EDITED, ""),
        (OLD, NEW, None, [OLD], ChangeKind.EDITED, ""),
        (OLD, NEW, NEW, [], ChangeKind.EDITED, ""),
        (b"\0", NEW, NEW, [b"\0"], ChangeKind.EDITED, ""),
    ],
)
def test_the_diff_is_made_of_what_is_still_at_hand(
    workspace: Workspace,
    tmp_path: Path,
    before: bytes | None,
    after: bytes | None,
    on_disk: bytes | None,
    kept: list[bytes],
    kind: ChangeKind,
    diff: str,
) -> None:
    if on_disk is not None:
        (tmp_path / "a.py").write_bytes(on_disk)
    effect = FileEffect("a.py", state(before), state(after))
    assert describe_effect(workspace, keeping(*kept), effect) == FileChange(
        path="a.py",
        kind=kind,
        sha256_before=effect.before.sha256,
        sha256_after=effect.after.sha256,
        diff=diff,
    )
