"""All tasks of the evaluation, and the fingerprint of the set."""

import hashlib
from collections.abc import Iterable

from benchmarks.real_model.task import Task
from benchmarks.real_model.tasks.new_files import NEW_FILES
from benchmarks.real_model.tasks.one_file import ONE_FILE
from benchmarks.real_model.tasks.orders_a import ORDERS_A
from benchmarks.real_model.tasks.orders_b import ORDERS_B
from benchmarks.real_model.tasks.other_files import OTHER_FILES
from benchmarks.real_model.tasks.questions import QUESTIONS
from benchmarks.real_model.tasks.refusals import REFUSALS
from benchmarks.real_model.tasks.repairs_a import REPAIRS_A
from benchmarks.real_model.tasks.repairs_b import REPAIRS_B
from benchmarks.real_model.tasks.repairs_c import REPAIRS_C
from benchmarks.real_model.tasks.several_files import SEVERAL_FILES
from benchmarks.real_model.tasks.unnamed import UNNAMED

ALL_TASKS: tuple[Task, ...] = (
    *REPAIRS_A,
    *REPAIRS_B,
    *REPAIRS_C,
    *ONE_FILE,
    *SEVERAL_FILES,
    *OTHER_FILES,
    *NEW_FILES,
    *UNNAMED,
    *QUESTIONS,
    *REFUSALS,
)
"""Their halves alternate from the first to the last."""

ORDERS: tuple[Task, ...] = (*ORDERS_A, *ORDERS_B)
"""Orders as people type them in passing: a set of its own, all of it looked at while the harness was tuned."""


def tasks_digest(tasks: Iterable[Task]) -> str:
    """SHA-256, in hex, of all that these tasks say, their checks included: results with the same one are comparable."""
    return hashlib.sha256("\n".join(map(repr, tasks)).encode()).hexdigest()
