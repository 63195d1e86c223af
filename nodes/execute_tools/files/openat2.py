"""Linux's openat2: one call that walks a whole path below a directory and never leaves it.

`os` has no such function, so libc is asked through ctypes. Where the kernel does not have the call (before 5.6, other
systems) or a filter forbids it (older container runtimes), `available` says no and `handles` walks by itself.
"""

import errno
import os
import sys
from functools import cache
from typing import Any, Final

NUMBER: Final = 437
"""Of the system call. Source: Linux's table for all architectures since 5.6; where it is another, ENOSYS comes back."""
BENEATH, NO_MAGICLINKS, NO_SYMLINKS = 0x08, 0x02, 0x04
"""What may not happen on the way: leaving the directory, the links of /proc, any link. Source: <linux/openat2.h>."""
ATTEMPTS: Final = 16
"""A signal, or somebody who renames directories meanwhile, makes the kernel ask for another try."""

_RESOLVE: Final = BENEATH | NO_MAGICLINKS | NO_SYMLINKS


def available() -> bool:
    """Whether this process may use the call; tried out once, when it is first wanted."""
    return _answers()


def open_beneath_by_kernel(directory_fd: int, relative_path: str, flags: int, mode: int = 0) -> int:
    """Open what the path leads to below the directory, or fail; no link is followed. The handle is not inherited.

    `mode` is for O_CREAT alone: without it the kernel refuses any but 0.

    Raises:
        OSError: as `os.open`; ELOOP for a link anywhere, EXDEV for a path that leads out, ENOSYS without the call.
        ValueError: a NUL character, as `os.open`.
    """
    name = os.fsencode(relative_path)
    if b"\0" in name:  # C would take what stands before it
        raise ValueError("embedded null byte")
    sys.audit("open", relative_path, None, flags)  # who watches `os.open` watches this as well
    number = errno.EAGAIN
    for _ in range(ATTEMPTS):
        descriptor, number = _call(directory_fd, name, flags | os.O_CLOEXEC, mode)
        if descriptor >= 0:
            return descriptor
        if number not in {errno.EAGAIN, errno.EINTR}:
            break
    raise OSError(number, os.strerror(number), relative_path)


@cache
def _answers() -> bool:
    if sys.platform != "linux":
        return False
    try:
        root = os.open("/", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        os.close(open_beneath_by_kernel(root, ".", os.O_PATH | os.O_DIRECTORY))
    except (OSError, ImportError, AttributeError):  # no call, no ctypes, no `syscall` in libc
        return False
    finally:
        os.close(root)
    return True


def _call(directory_fd: int, name: bytes, flags: int, mode: int) -> tuple[int, int]:
    import ctypes

    how = (ctypes.c_uint64 * 3)(flags, mode, _RESOLVE)  # struct open_how
    descriptor = _function()(NUMBER, directory_fd, name, how, ctypes.sizeof(how))
    return int(descriptor), ctypes.get_errno()


@cache
def _function() -> Any:
    import ctypes

    function = ctypes.CDLL(None, use_errno=True).syscall
    function.argtypes = (ctypes.c_long, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p, ctypes.c_size_t)
    function.restype = ctypes.c_long
    return function
