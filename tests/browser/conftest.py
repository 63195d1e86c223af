"""One browser for all tests of a process: each sets by `Page.view` how its pages are shown."""

from collections.abc import Iterator

import pytest

from tests.browser.chromium import Page, chromium


@pytest.fixture(scope="session")
def browser() -> Iterator[Page]:
    """The browser."""
    with chromium() as page:
        yield page
