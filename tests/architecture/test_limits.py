from tests.architecture.limits import SNAPSHOT, limits
from tests.snapshots import Snapshots


def test_every_limit_is_as_reviewed(snapshots: Snapshots) -> None:
    snapshots.check(SNAPSHOT, "\n".join(limits()) + "\n")
