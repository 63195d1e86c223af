"""The picture of the machine, drawn by Mermaid: README's, and the one that LangGraph gives to Studio's server."""

from pathlib import Path

import pytest
from selenium.webdriver.common.by import By

from mendgraph.graph.machine import routes
from mendgraph.graph.machine.build import build_graph
from tests.browser.chromium import Page, needs_chromium, needs_node_modules, screenshots
from tests.extent import slow

pytestmark = [slow, needs_chromium, needs_node_modules]

PAGE = Path(__file__).parent / "mermaid.html"


@pytest.fixture
def page(browser: Page) -> Page:
    """The browser, in a window for pictures."""
    browser.view(width=1000)
    return browser


OVERLAPS = """
const labels = [...document.querySelectorAll("svg .nodeLabel, svg .edgeLabel span.edgeLabel")]
  .filter(each => each.textContent.trim()).map(each => [each.textContent, each.getBoundingClientRect()]);
return labels.flatMap(([text, a], i) => labels.slice(i + 1)
  .filter(([, b]) => a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom)
  .map(([other]) => `${text} / ${other}`));
"""

WORDS = {label for _, label, _ in routes.TRANSITIONS if label}
DRAWN = {str(word) for node in routes.NODES for word in routes.PATH_MAPS[node] if str(word)}
"""As LangGraph draws them."""


def server_picture() -> str:
    """What `langgraph dev` draws: the graph as it was compiled."""
    return build_graph().get_graph().draw_mermaid()


@pytest.mark.parametrize(
    ("name", "source", "words"),
    [
        ("readme", routes.mermaid(), {"START", "END", *routes.NODES, *WORDS}),
        ("studio", server_picture(), {"__start__", "__end__", *routes.NODES, *DRAWN}),
    ],
    ids=["readme", "studio"],
)
def test_mermaid_picture_is_drawn_completely(
    page: Page, tmp_path: Path, name: str, source: str, words: set[str]
) -> None:
    page.open(PAGE)
    assert page.run("return draw(arguments[0])", source) is True
    page.screenshot(screenshots(tmp_path) / f"mermaid-{name}.png")
    assert labels(page) == words
    assert (page.run(OVERLAPS), page.overflow(), page.console_errors(), page.contrast_problems()) == ([], [], [], [])


def labels(page: Page) -> set[str]:
    """The words in the picture: of nodes, and of arrows, one for each line."""
    elements = page.driver.find_elements(By.CSS_SELECTOR, "svg .nodeLabel, svg .edgeLabel span.edgeLabel")
    return {line.strip() for element in elements for line in element.text.splitlines() if line.strip()}
