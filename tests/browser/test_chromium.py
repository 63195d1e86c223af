"""The browser of the tests notices what a person would."""

from pathlib import Path

import pytest

from tests.browser.chromium import AXE, Page, needs_chromium

pytestmark = needs_chromium

FAULTY = """<!doctype html><html lang="en"><title>t</title>
<style>.cut { overflow: hidden; width: 40px; white-space: nowrap } .pale { color: #ccc; background: #fff }
@media (prefers-color-scheme: dark) { body { background: #000 } } @media print { body { background: #0f0 } }</style>
<p style="width: 2000px">wide</p><p class="cut">cut off in the middle</p><p class="pale">pale</p>
<details><summary>folded</summary><p>nobody sees this</p></details>
<script>console.error("broken"); document.body.append("scripted")</script><img src="http://example.com/a.png" alt="">
"""


@pytest.fixture
def faulty(tmp_path: Path) -> Path:
    path = tmp_path / "faulty.html"
    path.write_text(FAULTY, encoding="utf-8")
    return path


def test_faults_are_noticed(browser: Page, faulty: Path) -> None:
    browser.view(width=360)
    browser.open(faulty)
    assert "scripted" in browser.text()
    assert "nobody sees this" not in browser.text()
    wide, sticking_out, cut = browser.overflow()
    assert (wide, sticking_out.split()[0]) == ("the page is 2008 px wide in a window of 360 px", "p")
    assert cut == "p.cut cuts its text: cut off in the middle"
    assert any("broken" in each for each in browser.console_errors())
    assert browser.requests() == ["http://example.com/a.png"]


@pytest.mark.skipif(not AXE.is_file(), reason="axe-core is missing; `make browser` installs it")
def test_pale_text_is_noticed(browser: Page, faulty: Path) -> None:
    browser.view()
    browser.open(faulty)
    (problem,) = browser.contrast_problems()
    assert problem.startswith("color-contrast: .pale:")


def test_view_is_what_the_page_is_shown_in(browser: Page, faulty: Path, tmp_path: Path) -> None:
    background = "return getComputedStyle(document.body).backgroundColor"
    browser.view(dark=True)
    browser.open(str(faulty))
    assert browser.run(background) == "rgb(0, 0, 0)"
    browser.view(print=True, javascript=False)
    assert browser.run(background) == "rgb(0, 255, 0)"
    browser.open(faulty)
    assert "scripted" not in browser.text()
    browser.screenshot(tmp_path / "page.png")
    assert (tmp_path / "page.png").read_bytes().startswith(b"\x89PNG")


def test_page_without_faults_has_none(browser: Page, tmp_path: Path) -> None:
    path = tmp_path / "fine.html"
    path.write_text("<!doctype html><html lang='en'><title>t</title><p>fine</p>", encoding="utf-8")
    browser.view()
    browser.open(path)
    assert browser.overflow() == browser.console_errors() == browser.requests() == []
