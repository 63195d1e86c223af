"""All recorded runs."""

from tests.recorded.changes import CHANGES
from tests.recorded.limits import LIMITS
from tests.recorded.permissions import PERMISSIONS
from tests.recorded.protocols import PROTOCOLS
from tests.recorded.questions import QUESTIONS
from tests.recorded.recorded_run import RecordedRun
from tests.recorded.repairs import CHECKED_REPAIRS, REPAIRS

RUNS: tuple[RecordedRun, ...] = (
    *REPAIRS,
    *CHECKED_REPAIRS,
    *QUESTIONS,
    *CHANGES,
    *PERMISSIONS,
    *LIMITS,
    *PROTOCOLS,
)
