"""The run report as a person sees it: in a window, in dark mode, on a phone, on paper."""

from itertools import pairwise
from pathlib import Path

import pytest
from selenium.webdriver.common.keys import Keys

from mendgraph import report_html
from tests.browser.chromium import AXE, Page, needs_chromium, screenshots
from tests.extent import slow
from tests.surfaces.report.report_plays import HOSTILE, hostile_run, page, run_with_approvals

pytestmark = needs_chromium

VIEWS = {
    "light": {"width": 1280},
    "dark": {"width": 1280, "dark": True},
    "phone": {"width": 360, "height": 740},
    "narrow": {"width": 320, "height": 640, "dark": True},
    "print": {"width": 794, "height": 1123, "print": True},
}


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A run with an approval request, and one in which every text is hostile."""
    folder = tmp_path_factory.mktemp("report")
    run_with_approvals(folder / "asked")
    hostile_run(folder / "hostile")
    paths = {}
    for name in ("asked", "hostile"):
        paths[name] = folder / f"{name}.html"
        paths[name].write_text(page(report_html("", str(folder / name))), encoding="utf-8")
    return paths


def unfold(browser: Page) -> None:
    browser.run("for (const each of document.querySelectorAll('details')) each.open = true")


def in_views(first: str, *others: str) -> pytest.MarkDecorator:
    """The first view in each session of tests, the others in sweeps."""
    return pytest.mark.parametrize("name", [first, *(pytest.param(name, marks=slow) for name in others)])


@slow
@in_views(*VIEWS)
def test_report_is_readable_in_every_view(name: str, browser: Page, pages: dict[str, Path], tmp_path: Path) -> None:
    browser.view(**VIEWS[name])  # type: ignore[arg-type]
    browser.open(pages["asked"])
    browser.screenshot(screenshots(tmp_path) / f"report-{name}.png")
    text = browser.text()
    for expected in (
        "Mend add.",
        "FINISHED",
        "execute_tools",
        "edited calc.py",
        "+    return a + b",
        "How to continue",
    ):
        assert expected in text
    assert browser.overflow() == []
    unfold(browser)
    assert browser.overflow() == []
    assert browser.console_errors() == browser.requests() == []


@slow
@in_views("light", "narrow", "print")
def test_hostile_text_is_shown_as_text(name: str, browser: Page, pages: dict[str, Path], tmp_path: Path) -> None:
    browser.view(**VIEWS[name])  # type: ignore[arg-type]
    browser.open(pages["hostile"])
    unfold(browser)
    assert browser.run("return document.querySelectorAll('script, img, [onerror], [onload]').length") == 0
    assert browser.run("return document.title") != "owned"
    assert HOSTILE[:60] in browser.text()
    assert browser.overflow() == browser.console_errors() == browser.requests() == []
    browser.screenshot(screenshots(tmp_path) / f"report-hostile-{name}.png")


@slow
def test_report_is_accessible_by_keyboard_and_without_javascript(browser: Page, pages: dict[str, Path]) -> None:
    texts = []
    for javascript in (False, True):
        browser.view(javascript=javascript)
        browser.open(pages["asked"])
        texts.append(browser.text())
    assert texts[0] == texts[1]
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
    levels = browser.run("return [...document.querySelectorAll('h1,h2,h3,h4')].map(each => Number(each.tagName[1]))")
    assert (levels[0], levels.count(1)) == (1, 1)
    assert all(after - before <= 1 for before, after in pairwise(levels))
    assert browser.run(_LABELS_THAT_MEET) == []
    for dark in (False, True) if AXE.is_file() else ():
        browser.view(dark=dark)
        browser.open(pages["asked"])
        unfold(browser)
        assert (browser.contrast_problems(), browser.accessibility_problems()) == ([], [])


@slow
def test_command_is_wrapped_only_between_words_on_a_phone(browser: Page, pages: dict[str, Path]) -> None:
    """People type it or copy it: a break after the first `-` of `--root` would look like a dash."""
    browser.view(**VIEWS["phone"])  # type: ignore[arg-type]
    browser.open(pages["asked"])
    lines, commands = browser.run(
        "const words = [...document.querySelectorAll('.commands code > *')].filter(each => each.innerText.length < 20);"
        "return [words.map(each => [each.innerText, each.getClientRects().length, each.offsetHeight < 30]),"
        " [...document.querySelectorAll('.commands code')].map(each => each.innerText)]"
    )
    assert "--root" in {word for word, *_ in lines}
    assert [line for line in lines if line[1:] != [1, True]] == []
    assert [
        command for command in commands if "  " in command or "\n" in command or not command.startswith("mendgraph ")
    ] == []


@slow
def test_printed_report_is_fully_expanded(browser: Page, pages: dict[str, Path], tmp_path: Path) -> None:
    browser.view(**VIEWS["print"])  # type: ignore[arg-type]
    browser.open(pages["asked"])
    hidden = "return [...document.querySelectorAll('details > :not(summary)')].filter(e => !e.checkVisibility()).length"
    assert browser.run(hidden) == 0
    assert browser.run("return document.querySelector('nav').checkVisibility()") is False
    printed = browser.pdf()
    (screenshots(tmp_path) / "report.pdf").write_bytes(printed)
    assert printed.startswith(b"%PDF-")


_LABELS_THAT_MEET = """
const shown = [...document.querySelectorAll('.picture text')].map(each => [each, each.getBoundingClientRect()]);
const meet = (a, b) => a.left < b.right - 1 && b.left < a.right - 1 && a.top < b.bottom - 3 && b.top < a.bottom - 3;
return shown.flatMap(([one, a], at) => shown.slice(at + 1).filter(([other, b]) => meet(a, b))
  .map(([other]) => `${one.textContent} meets ${other.textContent}`));
"""
