import errno

import pytest

from mendgraph.nodes.records import ToolError, ToolErrorCode, is_disk_full, os_failure, quoted

CASES = [
    (errno.ENOSPC, ToolErrorCode.IO_ERROR, "Cannot write 'a.py': the disk is full."),
    (errno.EROFS, ToolErrorCode.PERMISSION_DENIED, "Cannot write 'a.py': the file system is read-only."),
    (errno.EACCES, ToolErrorCode.PERMISSION_DENIED, "Cannot write 'a.py': the file permissions do not allow it."),
    (errno.ESTALE, ToolErrorCode.CONFLICT, "Cannot write 'a.py': it changed while it was being opened; try again."),
    (errno.EMLINK, ToolErrorCode.IO_ERROR, "Cannot write 'a.py': Too many links."),
]


@pytest.mark.parametrize(("number", "code", "message"), CASES)
def test_each_reason_names_the_path_and_what_is_wrong(number: int, code: ToolErrorCode, message: str) -> None:
    fatal = number in {errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS}
    error = OSError(number, "Too many links")
    assert os_failure(error, "write", "a.py") == ToolError(code=code, message=message, fatal=fatal)
    assert not os_failure(error, "read", "a.py").fatal


@pytest.mark.parametrize(("number", "full"), [(errno.ENOSPC, True), (errno.EDQUOT, True), (errno.EIO, False)])
def test_a_full_disk_is_known(number: int, full: bool) -> None:
    assert is_disk_full(os_failure(OSError(number, "x"), "copy", "the disk is full.")) is full


@pytest.mark.parametrize(
    ("path", "shown"),
    [("a.py", "'a.py'"), ("a\u202eb", r"'a\u202eb'"), ("\udc80", r"'\udc80'"), ("x" * 300, f"'{'x' * 200}...'")],
)
def test_a_path_is_quoted_on_one_safe_line(path: str, shown: str) -> None:
    assert quoted(path) == shown
