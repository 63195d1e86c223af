"""What the commands that work on no task answer with `--json`, as types for the published schema. Pure."""

from typing import Any, Final, Literal

from typing_extensions import TypedDict

from graph.batch.orders import TaskResult
from graph.terminal.command_objects import RestoredObject


class RunObject(TypedDict):
    """A run of this folder: `state` is where it stands now, `kind` and `reason` how its last turn ended, if it has."""

    run_id: str
    state: str
    can_go_on: bool
    task: str
    created: str
    updated: str
    turns: int
    request: str
    kind: str
    reason: str
    message: str
    answer: str
    files: list[str]
    context: dict[str, Any]
    durability: str
    parent: str
    forked_at: int | None


class CallOfStep(TypedDict):
    """A call, and what it was aimed at."""

    tool: str
    target: str


class StepObject(TypedDict):
    """A step of a run."""

    step: int
    turn: int
    kind: str
    calls: list[CallOfStep]
    changed: list[str]
    can_fork: bool


class ShownRun(RunObject):
    """The answer to `runs show`."""

    steps: list[StepObject]


class PrunedRuns(TypedDict):
    """The answer to `runs prune`."""

    removed: list[str]
    freed_bytes: int


class ForkedRun(RestoredObject):
    """The answer to `fork`: the new run, and what was taken back of the other one."""

    run_id: str
    parent: str
    at: int
    resume: str


class WrittenReport(TypedDict):
    """The answer to `report`."""

    run_id: str
    path: str
    bytes: int


class ModelOfDay(TypedDict):
    """What one model has used on one day; `unsettled` calls have no end yet."""

    model: str
    calls: int
    input_tokens: int
    output_tokens: int
    cached_tokens: int
    reasoning_tokens: int
    cache_write_tokens: int
    cost_usd: float
    unpriced_calls: int
    unsettled: int
    seconds: float


class DayObject(TypedDict):
    """A day (UTC) and its models."""

    day: str
    models: list[ModelOfDay]


class AccountObject(TypedDict):
    """What an account has ever used; `unsettled` calls have no end yet, `account` is "" for runs that name none."""

    account: str
    calls: int
    tokens: int
    cost_usd: float
    unpriced: int
    unsettled: int
    first_day: str
    last_day: str


class CheckObject(TypedDict):
    """One finding of `doctor`; `remedy` is "" where there is nothing to do."""

    name: str
    status: Literal["ok", "warning", "problem", "off"]
    found: str
    remedy: str


class DoctorObject(TypedDict):
    """The answer to `doctor`; `ok`: nothing is a problem."""

    ok: bool
    checks: list[CheckObject]


class BundleObject(TypedDict):
    """The answer to `doctor --bundle`: the file, what lies in it, and commands that reproduce the matter."""

    path: str
    files: dict[str, str]
    reproduce: list[str]


class SettingObject(TypedDict):
    """A setting and who set it; `line` is 0 where that is no file."""

    value: Any
    origin: str
    line: int


class SettingsObject(TypedDict):
    """The answer to `config`."""

    settings: dict[str, SettingObject]
    files: list[str]


class CheckedFile(TypedDict):
    """A file without problems, and what it sets."""

    file: str
    settings: list[str]


class CheckedFiles(TypedDict):
    """The answer to `config check`."""

    files: list[CheckedFile]


class TrustObject(TypedDict):
    """The answer to `config trust`; `sha256` is "" where the file is not trusted any more."""

    trusted: bool
    sha256: str


class WeightsObject(TypedDict):
    """The answer to `model status`; `usable`: the weights are whole, and the extra `local` is there to run them."""

    state: Literal["ready", "absent", "partial", "damaged"]
    path: str
    bytes_present: int
    bytes_expected: int
    extra_installed: bool
    usable: bool


class PulledObject(TypedDict):
    """The answer to `model pull`; `source` is "cache" where nothing had to be fetched."""

    path: str
    size_bytes: int
    source: str


class AddressObject(TypedDict):
    """What `model serve` says once it serves."""

    base_url: str


class WrittenCassetteObject(TypedDict):
    """The answer to `cassette from-run`: what was written, and how the test is started."""

    run_id: str
    name: str
    paths: list[str]
    exchanges: int
    files: int
    end: str
    command: str


class LintFindingObject(TypedDict):
    """Something to mend in a cassette; lines count from 1. A `note` is nothing to mend: something was not looked at."""

    path: str
    line: int
    what: str
    remedy: str
    note: bool


class ReplayObject(TypedDict):
    """What `cassette serve` says at its end: requests that it refused, and how many exchanges nobody asked for."""

    misses: list[str]
    unplayed: int


class BatchObject(TypedDict):
    """The summary of a `batch`, after the results of its tasks (`TaskResult`), each on a line of its own.

    `end` says whether each task has its result, or what ended it before. `stopped` tasks met a limit; `unpriced` ones
    have made calls without a known price. `total` and `left` are null where nobody knows how many tasks there are.
    """

    batch: str
    folder: str
    end: Literal["complete", "limit", "cancelled", "failed"]
    message: str
    total: int | None
    left: int | None
    finished: int
    stopped: int
    failed: int
    calls: int
    input_tokens: int
    output_tokens: int
    cached_tokens: int
    reasoning_tokens: int
    cache_write_tokens: int
    cost_usd: float
    unpriced: int


ANSWERS: Final[tuple[Any, ...]] = (
    ShownRun,
    RestoredObject,
    ForkedRun,
    PrunedRuns,
    WrittenReport,
    DoctorObject,
    BundleObject,
    SettingsObject,
    CheckedFiles,
    TrustObject,
    WeightsObject,
    PulledObject,
    AddressObject,
    WrittenCassetteObject,
    ReplayObject,
    TaskResult,
    BatchObject,
)
LISTED: Final[tuple[Any, ...]] = (RunObject, DayObject, AccountObject, LintFindingObject)
"""Answers that are an array of these: `runs`, `usage`, `usage --accounts` and `cassette lint`."""
