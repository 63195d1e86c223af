import errno

from mendgraph.nodes.language.os_errors import is_disk_full, os_failure
from mendgraph.nodes.records import ToolError, ToolErrorCode as Code, quoted
from tests.row_tables import rows

FATAL = {errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS}


@rows(
    (errno.ENOSPC, Code.IO_ERROR, "the disk is full."),
    (errno.EDQUOT, Code.IO_ERROR, "the disk quota is used up."),
    (errno.EIO, Code.IO_ERROR, "the disk reports an error."),
    (errno.EMLINK, Code.IO_ERROR, "Too many links."),
    (errno.EROFS, Code.PERMISSION_DENIED, "the file system is read-only."),
    (errno.EACCES, Code.PERMISSION_DENIED, "the file permissions do not allow it."),
    (errno.EPERM, Code.PERMISSION_DENIED, "the operating system does not allow it."),
    (errno.ESTALE, Code.CONFLICT, "it changed while it was being opened; try again."),
    (errno.EEXIST, Code.CONFLICT, "it exists already."),
    (errno.ENOENT, Code.NOT_FOUND, "there is no such file or directory."),
    (errno.EISDIR, Code.INVALID_ARGUMENT, "it is a directory, and a file is needed."),
    (errno.ENOTDIR, Code.INVALID_ARGUMENT, "a part of it is a file where a directory is needed."),
    (errno.ENXIO, Code.INVALID_ARGUMENT, "it is not a regular file (a pipe, socket or device)."),
    (errno.ENAMETOOLONG, Code.INVALID_ARGUMENT, "the name is too long."),
    (errno.ELOOP, Code.INVALID_ARGUMENT, "its symbolic links lead in a circle."),
)
def test_os_failure_names_the_path_and_the_problem(number: int, code: Code, reason: str) -> None:
    error = OSError(number, "Too many links")
    expected = ToolError(code=code, message=f"Cannot write 'a.py': {reason}", fatal=number in FATAL)
    assert os_failure(error, "write", "a.py") == expected
    assert not os_failure(error, "read", "a.py").fatal
    assert {os_failure(error, doing, "a.py").fatal for doing in ("delete", "move", "move to")} == {number in FATAL}
    copying = os_failure(error, "copy", "the disk is full.")
    assert is_disk_full(copying) is (number in {errno.ENOSPC, errno.EDQUOT})


@rows(("a.py", "'a.py'"), ("a\u202eb", r"'a\u202eb'"), ("\udc80", r"'\udc80'"), ("x" * 300, f"'{'x' * 200}...'"))
def test_path_is_quoted_on_one_line(path: str, expected: str) -> None:
    assert quoted(path) == expected
