import pytest


@pytest.fixture(autouse=True)
def unmeasured(no_cover: None) -> None:
    """Attacks show that nothing gets through, not which lines ran; measured, a race takes five times as long."""
