"""Everything that is attacked, by name."""

from typing import Final

from tests.fuzz import edit_targets, guard_targets, language_targets, stored_targets
from tests.fuzz.target import Target

TARGETS: Final[dict[str, Target]] = {
    target.name: target
    for room in (language_targets, edit_targets, guard_targets, stored_targets)
    for target in room.TARGETS
}
