"""No handle is opened through a link. What tools make of that, tests/workspace/attacks shows."""

import errno
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mendgraph.nodes.workspace.files.handles import (
    closing,
    handle_name,
    open_beneath,
    open_directory,
    open_regular,
    open_root,
    status_beneath,
)
from tests.doubles.system_calls import replaced


def error_of(function: Callable[..., Any], *arguments: object) -> int | None:
    try:
        function(*arguments)
    except OSError as error:
        return error.errno
    return None


def test_no_link_is_followed_anywhere_in_a_path(root: Path) -> None:
    (root / "inside").symlink_to("src")
    created_folders: list[str] = []
    with closing(open_root(str(root))) as handle:
        for path in ("out.txt", "out/secret.txt", "out", "inside/b.py", "inside"):
            assert error_of(open_beneath, handle, path.split("/"), os.O_RDONLY) == errno.ESTALE, path
            assert error_of(open_regular, handle, path.split("/"), os.O_RDONLY) == errno.ESTALE, path
            assert error_of(open_directory, handle, path.split("/")) == errno.ESTALE, path
        assert error_of(lambda: open_directory(handle, ("out", "new"), created=created_folders)) == errno.ESTALE
        assert error_of(status_beneath, handle, ("out", "secret.txt")) == errno.ESTALE

        # The failing control: a trailing slash defeats O_NOFOLLOW, so no such name is ever passed on.
        with closing(os.open("out/", os.O_RDONLY | os.O_NOFOLLOW, dir_fd=handle)) as opened:
            assert os.listdir(opened) == ["secret.txt"]
        for part in ("", "..", "src/b.py", "out/"):
            with pytest.raises(ValueError, match="not one part"):
                open_beneath(handle, (part, "x"), os.O_RDONLY)
    assert (created_folders, os.listdir(root / "out")) == ([], ["secret.txt"])


@pytest.mark.skipif(sys.platform != "linux", reason="other kernels say it in other ways")
def test_deleted_file_has_no_name_even_with_a_hard_link(root: Path) -> None:
    with closing(open_root(str(root))) as handle:
        for more in (False, True):
            (root / "f").write_text("x")
            descriptor, _ = open_regular(handle, ("f",), os.O_RDONLY)
            if more:
                os.link(root / "f", root / "other")
            (root / "f").unlink()
            with closing(descriptor):
                assert handle_name(descriptor) is None
        assert status_beneath(handle, ()).st_ino == root.stat().st_ino


def test_pipe_that_replaces_a_file_is_not_waited_for(root: Path) -> None:
    os.mkfifo(root / "pipe")
    status = os.stat(root / "a.py")
    with closing(open_root(str(root))) as handle, replaced(stat=lambda *_, **__: status):
        assert error_of(open_regular, handle, ("pipe",), os.O_RDONLY) == errno.ENXIO
