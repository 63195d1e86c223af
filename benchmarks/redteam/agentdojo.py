"""AgentDojo."""

from collections.abc import Iterator


def measured() -> Iterator[str]:
    """Nothing yet."""
    yield ""
