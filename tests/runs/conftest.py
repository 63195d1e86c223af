import pytest


@pytest.fixture(autouse=True)
def unmeasured(no_cover: None) -> None:
    """Whole runs show what comes of it, not which lines ran; measured, they take three times as long."""
