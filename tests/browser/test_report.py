"""The run report as a person sees it: in a window, in the dark, on a phone, on paper."""

from itertools import pairwise
from pathlib import Path

import pytest
from selenium.webdriver.common.keys import Keys

from mendgraph.graph.report.page import report_html
from tests.browser.chromium import AXE, Page, needs_chromium, screenshots
from tests.graph.report.report_plays import HOSTILE, asked_run, hostile_run, page

pytestmark = needs_chromium

VIEWS = {
    "light": {"width": 1280},
    "dark": {"width": 1280, "dark": True},
    "phone": {"width": 360, "height": 740},
    "narrow": {"width": 320, "height": 640, "dark": True},
    "print": {"width": 794, "height": 1123, "print": True},
}
needs_axe = pytest.mark.skipif(not AXE.is_file(), reason="axe-core is missing; `make browser` installs it")


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A run in which a person was asked, and one in which everybody's words are hostile."""
    folder = tmp_path_factory.mktemp("report")
    asked_run(folder / "asked")
    hostile_run(folder / "hostile")
    made = {}
    for name in ("asked", "hostile"):
        made[name] = folder / f"{name}.html"
        made[name].write_text(page(report_html("", str(folder / name))), encoding="utf-8")
    return made


def unfold(browser: Page) -> None:
    browser.run("for (const each of document.querySelectorAll('details')) each.open = true")


@pytest.mark.parametrize("name", VIEWS)
def test_it_can_be_read_everywhere(name: str, browser: Page, pages: dict[str, Path], tmp_path: Path) -> None:
    browser.view(**VIEWS[name])  # type: ignore[arg-type]
    browser.open(pages["asked"])
    browser.screenshot(screenshots(tmp_path) / f"report-{name}.png")
    text = browser.text()
    for expected in ("Mend add.", "FINISHED", "execute_tools", "edited calc.py", "+    return a + b", "How to go on"):
        assert expected in text
    assert browser.overflow() == []
    unfold(browser)
    assert browser.overflow() == []
    assert browser.console_errors() == browser.requests() == []


def test_no_word_of_a_command_is_torn_on_a_phone(browser: Page, pages: dict[str, Path]) -> None:
    """It is read and typed, or taken as a whole: a break after the first `-` of `--root` would be taken for a dash."""
    browser.view(**VIEWS["phone"])  # type: ignore[arg-type]
    browser.open(pages["asked"])
    lines, commands = browser.run(
        "const words = [...document.querySelectorAll('.commands code > *')].filter(each => each.innerText.length < 20);"
        "return [words.map(each => [each.innerText, each.getClientRects().length, each.offsetHeight < 30]),"
        " [...document.querySelectorAll('.commands code')].map(each => each.innerText)]"
    )
    assert "--root" in {word for word, *_ in lines}
    assert [each for each in lines if each[1:] != [1, True]] == []
    assert [each for each in commands if "  " in each or "\n" in each or not each.startswith("mendgraph ")] == []


@needs_axe
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_its_contrast_is_enough_and_it_is_accessible(dark: bool, browser: Page, pages: dict[str, Path]) -> None:
    browser.view(dark=dark)
    browser.open(pages["asked"])
    unfold(browser)
    assert browser.contrast_problems() == []
    assert browser.accessibility_problems() == []


@pytest.mark.parametrize("name", ["light", "narrow", "print"])
def test_hostile_words_are_words(name: str, browser: Page, pages: dict[str, Path], tmp_path: Path) -> None:
    browser.view(**VIEWS[name])  # type: ignore[arg-type]
    browser.open(pages["hostile"])
    unfold(browser)
    assert browser.run("return document.querySelectorAll('script, img, [onerror], [onload]').length") == 0
    assert browser.run("return document.title") != "owned"
    assert HOSTILE[:60] in browser.text()
    assert browser.overflow() == browser.console_errors() == browser.requests() == []
    browser.screenshot(screenshots(tmp_path) / f"report-hostile-{name}.png")


def test_nothing_of_it_needs_a_script(browser: Page, pages: dict[str, Path]) -> None:
    browser.view(javascript=False)
    browser.open(pages["asked"])
    without = browser.text()
    browser.view()
    browser.open(pages["asked"])
    assert without == browser.text()
    folded = "return [...document.querySelectorAll('details')].some(each => each.open)"
    assert browser.run(folded) is False


def test_it_is_used_by_keyboard(browser: Page, pages: dict[str, Path]) -> None:
    browser.view()
    browser.open(pages["asked"])
    browser.press(Keys.TAB)
    assert browser.run("return document.activeElement.textContent") == "Skip to the report"
    assert browser.run("return document.activeElement.getBoundingClientRect().top") >= 0
    browser.press(Keys.ENTER)
    assert browser.run("return document.activeElement.id") == "main"
    browser.press(Keys.TAB)
    assert browser.run("return getComputedStyle(document.activeElement).outlineStyle") == "solid"
    browser.run("document.querySelector('#steps summary').focus()")
    browser.press(Keys.ENTER)
    assert browser.run("return document.querySelector('#steps details').open") is True


def test_on_paper_everything_is_unfolded(browser: Page, pages: dict[str, Path], tmp_path: Path) -> None:
    browser.view(**VIEWS["print"])  # type: ignore[arg-type]
    browser.open(pages["asked"])
    hidden = "return [...document.querySelectorAll('details > :not(summary)')].filter(e => !e.checkVisibility()).length"
    assert browser.run(hidden) == 0
    assert browser.run("return document.querySelector('nav').checkVisibility()") is False
    printed = browser.pdf()
    (screenshots(tmp_path) / "report.pdf").write_bytes(printed)
    assert printed.startswith(b"%PDF-")


def test_heads_are_in_order_and_the_picture_has_words(browser: Page, pages: dict[str, Path]) -> None:
    browser.view()
    browser.open(pages["asked"])
    levels = browser.run("return [...document.querySelectorAll('h1,h2,h3,h4')].map(each => Number(each.tagName[1]))")
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after - before <= 1 for before, after in pairwise(levels))
    crossing = browser.run(_LABELS_THAT_MEET)
    assert crossing == []


_LABELS_THAT_MEET = """
const shown = [...document.querySelectorAll('.picture text')].map(each => [each, each.getBoundingClientRect()]);
const meet = (a, b) => a.left < b.right - 1 && b.left < a.right - 1 && a.top < b.bottom - 3 && b.top < a.bottom - 3;
return shown.flatMap(([one, a], at) => shown.slice(at + 1).filter(([other, b]) => meet(a, b))
  .map(([other]) => `${one.textContent} meets ${other.textContent}`));
"""
