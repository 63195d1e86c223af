from tests.architecture.limits import SNAPSHOT, limits


def test_every_limit_is_the_reviewed_one() -> None:
    """`.venv/bin/python -m tests.architecture.limits` writes limits.txt again: the change of a number is reviewed."""
    assert limits() == SNAPSHOT.read_text(encoding="utf-8").splitlines()
