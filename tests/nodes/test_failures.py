import errno

import pytest

from mendgraph.nodes.records import ToolError, ToolErrorCode, is_disk_full, os_failure, quoted

CASES = [
    (errno.ENOSPC, ToolErrorCode.IO_ERROR, "Cannot write 'a.py': the disk is full."),
    (errno.EROFS, ToolErrorCode.PERMISSION_DENIED, "Cannot write 'a.py': the file system is read-only."),
    (errno.EACCES, ToolErrorCode.PERMISSION_DENIED, "Cannot write 'a.py': the file permissions do not allow it."),
    (errno.ESTALE, ToolErrorCode.CONFLICT, "Cannot write 'a.py': it changed while it was being opened; try again."),
    (errno.EMLINK, ToolErrorCode.IO_ERROR, "Cannot write 'a.py': Too many links."),
    (errno.ENOENT, ToolErrorCode.NOT_FOUND, "Cannot write 'a.py': there is no such file or directory."),
    (errno.EPERM, ToolErrorCode.PERMISSION_DENIED, "Cannot write 'a.py': the operating system does not allow it."),
    (
        errno.EISDIR,
        ToolErrorCode.INVALID_ARGUMENT,
        "Cannot write 'a.py': it is a directory, and a file is needed.",
    ),
    (
        errno.ENOTDIR,
        ToolErrorCode.INVALID_ARGUMENT,
        "Cannot write 'a.py': a part of it is a file where a directory is needed.",
    ),
    (
        errno.ENXIO,
        ToolErrorCode.INVALID_ARGUMENT,
        "Cannot write 'a.py': it is not a regular file (a pipe, socket or device).",
    ),
    (errno.ENAMETOOLONG, ToolErrorCode.INVALID_ARGUMENT, "Cannot write 'a.py': the name is too long."),
    (errno.ELOOP, ToolErrorCode.INVALID_ARGUMENT, "Cannot write 'a.py': its symbolic links lead in a circle."),
    (errno.EEXIST, ToolErrorCode.CONFLICT, "Cannot write 'a.py': it exists already."),
    (errno.EDQUOT, ToolErrorCode.IO_ERROR, "Cannot write 'a.py': the disk quota is used up."),
    (errno.EIO, ToolErrorCode.IO_ERROR, "Cannot write 'a.py': the disk reports an error."),
]


@pytest.mark.parametrize(("number", "code", "message"), CASES)
def test_each_reason_names_the_path_and_what_is_wrong(number: int, code: ToolErrorCode, message: str) -> None:
    fatal = number in {errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS}
    error = OSError(number, "Too many links")
    assert os_failure(error, "write", "a.py") == ToolError(code=code, message=message, fatal=fatal)
    assert not os_failure(error, "read", "a.py").fatal
    assert {os_failure(error, doing, "a.py").fatal for doing in ("write", "delete", "move", "move to")} == {fatal}


@pytest.mark.parametrize(("number", "full"), [(errno.ENOSPC, True), (errno.EDQUOT, True), (errno.EIO, False)])
def test_full_disk_is_known(number: int, full: bool) -> None:
    assert is_disk_full(os_failure(OSError(number, "x"), "copy", "the disk is full.")) is full


@pytest.mark.parametrize(
    ("path", "shown"),
    [("a.py", "'a.py'"), ("a\u202eb", r"'a\u202eb'"), ("\udc80", r"'\udc80'"), ("x" * 300, f"'{'x' * 200}...'")],
)
def test_path_is_quoted_on_one_safe_line(path: str, shown: str) -> None:
    assert quoted(path) == shown
