"""A headless Chromium for tests, which sees what a person sees: text, colours, what sticks out, what goes wrong.

    with chromium(width=360, dark=True) as page:
        page.open(report)                      # a path, or an address of this machine
        assert page.overflow() == page.console_errors() == page.requests() == []
        page.screenshot(screenshots(tmp_path) / "report-phone.png")

Names are resolved for this machine only, so that no page reaches the network: `FOREIGN` is its name for pages of other
people, at any port. Its profile is in a folder of its own,
and browser, driver and folder are gone when the block is left. One browser can show several views: `page.view(...)`.
"""

import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from selenium.webdriver import Chrome, ChromeOptions
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
FOREIGN = "evil.test"
AXE = Path(__file__).parent / "node_modules" / "axe-core" / "axe.min.js"
DEADLINE = 90
"""Seconds that a page or a script may take; a loaded machine is slow."""

_LOCAL_SCHEMES = frozenset({"data", "about", "blob", "chrome", "chrome-extension", "devtools"})
"""Schemes of what is in the page itself, and of what the browser asks itself for its own windows."""

SCREENSHOTS = "MENDGRAPH_SCREENSHOTS"
"""The environment variable that names a folder where screenshots stay; without it a test's own folder takes them."""


def browser_path() -> str | None:
    """The Chromium of this machine."""
    return next(filter(None, map(shutil.which, BROWSERS)), None)


needs_chromium = pytest.mark.skipif(
    browser_path() is None or shutil.which("chromedriver") is None,
    reason="chromium or chromedriver is missing; `make browser` installs them",
)
needs_node_modules = pytest.mark.skipif(
    not AXE.is_file() or shutil.which("node") is None,
    reason="node or tests/browser/node_modules is missing; `make browser` installs them",
)


def screenshots(folder: Path) -> Path:
    """Where screenshots go: the folder that MENDGRAPH_SCREENSHOTS names, or `folder`."""
    place = Path(os.environ.get(SCREENSHOTS) or folder)
    place.mkdir(parents=True, exist_ok=True)
    return place


class Page:
    """One tab of a browser."""

    def __init__(self, driver: Chrome) -> None:
        self.driver = driver
        self._log: list[str] = []
        self._requests: list[str] = []
        self._width, self._height = 1280, 900

    def view(
        self,
        *,
        width: int = 1280,
        height: int = 900,
        dark: bool = False,
        javascript: bool = True,
        print: bool = False,  # noqa: A002 -- the medium's name
        reduced_motion: bool = False,
    ) -> None:
        """Show pages like this from now on, in CSS pixels; without JavaScript from the next page that is opened."""
        self._width, self._height = width, height
        self._size(height)
        features = [
            {"name": "prefers-color-scheme", "value": "dark" if dark else "light"},
            {"name": "prefers-reduced-motion", "value": "reduce" if reduced_motion else "no-preference"},
        ]
        self._tell("Emulation.setEmulatedMedia", media="print" if print else "screen", features=features)
        self._tell("Emulation.setScriptExecutionDisabled", value=not javascript)

    def open(self, place: str | Path) -> None:
        """Load a file or an address, and wait until it is complete. Earlier errors and requests are forgotten."""
        address = place.resolve().as_uri() if isinstance(place, Path) else place
        if address.startswith("/"):
            address = Path(address).resolve().as_uri()
        self._drain()
        self._log, self._requests = [], []
        self.driver.get(address)

    def text(self) -> str:
        """The visible text of the page; collapsed parts are not included."""
        return self.driver.find_element(By.TAG_NAME, "body").text

    def run(self, script: str, *arguments: Any) -> Any:
        """Run our JavaScript and return its result, also on a page without JavaScript."""
        return self.driver.execute_script(script, *arguments)

    def wait_for(self, script: str, *arguments: Any) -> Any:
        """Wait until a piece of JavaScript returns something true, and return it."""
        return WebDriverWait(self.driver, DEADLINE, 0.05).until(lambda _: self.run(script, *arguments))

    def press(self, *keys: str) -> None:
        """Press these keys where the focus is, one after the other (`Keys.TAB`, or text)."""
        for key in keys:
            ActionChains(self.driver, duration=0).send_keys(key).perform()

    def screenshot(self, path: Path, *, full_page: bool = True) -> None:
        """Take a picture of the whole page, or of what is in the window, as PNG."""
        if full_page:
            self._size(min(int(self.run("return document.documentElement.scrollHeight")), 16_000))
        try:
            path.write_bytes(self.driver.get_screenshot_as_png())
        finally:
            self._size(self._height)

    def console_errors(self) -> list[str]:
        """What went wrong since the page was opened: errors and warnings of scripts, of the page, of what it loads."""
        self._drain()
        return list(self._log)

    def requests(self) -> list[str]:
        """The addresses that the page asked for since it was opened, besides its own: of files, servers, anything."""
        self._drain()
        return [address for address in self._requests if urlsplit(address).scheme not in _LOCAL_SCHEMES]

    def overflow(self) -> list[str]:
        """What cannot be read in this window: elements outside of it, and text that is cut off."""
        return [str(element) for element in self.run(_OVERFLOW)]

    def contrast_problems(self) -> list[str]:
        """Text whose contrast is too small, by axe-core."""
        return self._axe({"type": "rule", "values": ["color-contrast"]})

    def accessibility_problems(self) -> list[str]:
        """What axe-core finds against WCAG 2.2, levels A and AA, and against good practice."""
        tags = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
        return self._axe({"type": "tag", "values": tags})

    def pdf(self) -> bytes:
        """The page as it is printed."""
        import base64

        return base64.b64decode(self.driver.print_page())

    def _axe(self, what: dict[str, Any]) -> list[str]:
        self.run(AXE.read_text(encoding="utf-8"))
        violations = self.driver.execute_async_script(_RUN_AXE, what)
        return [str(violation) for violation in violations]

    def _size(self, height: int) -> None:
        self._tell(
            "Emulation.setDeviceMetricsOverride", width=self._width, height=height, deviceScaleFactor=1, mobile=False
        )

    def _tell(self, command: str, **arguments: Any) -> None:
        self.driver.execute_cdp_cmd(command, arguments)

    def _drain(self) -> None:
        """Collect what the browser has logged since the last time."""
        for entry in self.driver.get_log("browser"):  # type: ignore[no-untyped-call]
            if entry["level"] in {"SEVERE", "WARNING"}:
                self._log.append(f"{entry['level']}: {entry['message']}")
        for entry in self.driver.get_log("performance"):  # type: ignore[no-untyped-call]
            message = json.loads(entry["message"])["message"]
            if message["method"] == "Network.requestWillBeSent":
                params = message["params"]
                if params["requestId"] != params.get("loaderId"):  # else it is the page itself
                    self._requests.append(params["request"]["url"])


@contextmanager
def chromium(
    *,
    width: int = 1280,
    height: int = 900,
    dark: bool = False,
    javascript: bool = True,
    print: bool = False,  # noqa: A002 -- the medium's name
) -> Iterator[Page]:
    """A browser that shows pages like this; see `Page.view`."""
    folder = tempfile.mkdtemp(prefix="mendgraph-chromium-")
    try:
        driver = Chrome(options=_options(folder), service=_service())
        try:
            driver.set_page_load_timeout(DEADLINE)
            driver.set_script_timeout(DEADLINE)
            page = Page(driver)
            page.view(width=width, height=height, dark=dark, javascript=javascript, print=print)
            yield page
        finally:
            driver.quit()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _service() -> Service:
    return Service(executable_path=shutil.which("chromedriver") or "chromedriver")


def _options(folder: str) -> ChromeOptions:
    options = ChromeOptions()
    options.binary_location = browser_path() or ""
    for argument in (
        "--headless=new",
        "--disable-dev-shm-usage",
        "--disable-gpu",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-extensions",
        "--disable-sync",
        "--hide-scrollbars",
        "--no-first-run",
        "--no-proxy-server",
        "--force-color-profile=srgb",
        "--lang=en-US",
        f"--host-resolver-rules=MAP {FOREIGN} 127.0.0.1, MAP * ~NOTFOUND, EXCLUDE 127.0.0.1, EXCLUDE localhost",
        f"--user-data-dir={folder}",
    ):
        options.add_argument(argument)
    if os.geteuid() == 0:
        options.add_argument("--no-sandbox")  # Chromium refuses to start its sandbox as root
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    return options


_RUN_AXE = """
const [what, done] = arguments;
axe.run(document, {runOnly: what, resultTypes: ["violations"]}).then(
  found => done(found.violations.flatMap(rule => rule.nodes.map(node =>
    `${rule.id}: ${node.target.join(" ")}: ${(node.failureSummary || rule.help).replace(/\\s+/g, " ")}`))),
  error => done([`axe failed: ${error}`]));
"""

_OVERFLOW = """
const found = [], width = document.documentElement.clientWidth;
const name = node => node.tagName.toLowerCase() + (node.id ? "#" + node.id : "")
  + (typeof node.className === "string" && node.className ? "." + node.className.trim().split(/\\s+/).join(".") : "");
const scrolls = style => /auto|scroll/.test(style.overflowX);
const inside = node => {           // within something that scrolls sideways, or that is meant for screen readers only
  for (let each = node; each; each = each.parentElement) {
    const style = getComputedStyle(each);
    if (each !== document.documentElement && each !== document.body && scrolls(style) && each !== node) return true;
    if (style.clip !== "auto" || /inset\\(50%/.test(style.clipPath)) return true;
  }
  return false;
};
if (document.documentElement.scrollWidth > width) {
  found.push(`the page is ${document.documentElement.scrollWidth} px wide in a window of ${width} px`);
}
for (const node of document.body.querySelectorAll("*")) {
  if (!node.checkVisibility({visibilityProperty: true})) continue;
  const box = node.getBoundingClientRect(), style = getComputedStyle(node);
  if (!box.width || !box.height || inside(node)) continue;
  if (box.right > width + 1 || box.left < -1) {
    found.push(`${name(node)} reaches from ${Math.round(box.left)} to ${Math.round(box.right)} px of ${width}`);
  }
  const svg = node.closest("svg");
  if (svg && node.tagName === "text") {
    const frame = svg.getBoundingClientRect();
    const out = box.left < frame.left - 1 || box.right > frame.right + 1
      || box.top < frame.top - 1 || box.bottom > frame.bottom + 1;
    if (out) found.push(`text of the picture is cut: ${node.textContent.trim().slice(0, 60)}`);
  }
  const own = [...node.childNodes].some(each => each.nodeType === Node.TEXT_NODE && each.textContent.trim());
  const hides = {x: /hidden|clip/.test(style.overflowX), y: /hidden|clip/.test(style.overflowY)};
  if (!svg && own && ((hides.x && node.scrollWidth > node.clientWidth + 1)
      || (hides.y && node.scrollHeight > node.clientHeight + 1))) {
    found.push(`${name(node)} cuts its text: ${node.textContent.trim().slice(0, 60)}`);
  }
}
return found;
"""
