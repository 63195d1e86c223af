"""The two ways in which files are reached, so that a test can hold for both."""

import pytest

from mendgraph.nodes.execute_tools.files import openat2

BACK_ENDS = ("openat2", "walk")


def use(back_end: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on files are reached in this way; the test is skipped where the kernel does not have it."""
    if back_end == "walk":
        monkeypatch.setattr(openat2, "available", lambda: False)
    elif not openat2.available():
        pytest.skip("this kernel has no openat2, or a filter forbids it")
