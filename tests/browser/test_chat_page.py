"""Agent Chat UI, the chat page that LangChain gives to users of LangGraph servers, on the server of `make studio`.

It sends messages without a context: the assistant in its address says what a run may do, as for any user.
"""

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from selenium.webdriver.common.keys import Keys

from tests.browser.chromium import Page, needs_chromium, needs_node_modules, screenshots
from tests.doubles.replies import Say
from tests.doubles.scripted_server import ScriptedServer
from tests.doubles.tool_use import use
from tests.extent import slow
from tests.scenarios.sample_repair import CALC, DONE, EDIT, MENDED, READ, TASK
from tests.surfaces.serving.studio import Studio, native_server
from tests.workspace_files import changed_files, write_files

BUILT = Path(__file__).parent / "build" / "agent_chat"

pytestmark = [
    slow,
    pytest.mark.studio,
    needs_chromium,
    needs_node_modules,
    pytest.mark.skipif(not (BUILT / "index.html").is_file(), reason="the chat page is not built; `make browser` does"),
]


class Files(SimpleHTTPRequestHandler):
    """The page's files, without a log line for each."""

    def log_message(self, *_: Any) -> None:
        """Log nothing."""


@pytest.fixture(scope="module")
def site() -> Iterator[str]:
    """The address of the page as it was built."""
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Files, directory=str(BUILT))) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        thread.join()


@pytest.fixture
def page(browser: Page) -> Iterator[Page]:
    """The browser, in a window for chats; at the end it holds no connection to the server."""
    browser.view(width=1280, height=1300)
    yield browser
    browser.open("about:blank")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A workspace with a bug; pictures are taken beside it."""
    write_files(tmp_path / "workspace", CALC)
    return tmp_path / "workspace"


@contextmanager
def chat(studio: Studio, site: str, page: Page, folder: Path, model: ScriptedServer, **context: Any) -> Iterator[None]:
    """The page on an assistant of this context; at the end nothing may have gone wrong in it or in the server."""
    created: Any = studio.client.assistants.create("mendgraph", context=studio.context(folder, model, context))
    assistant = created["assistant_id"]
    try:
        page.open(site + "?" + urlencode({"apiUrl": studio.url, "assistantId": assistant}))
        yield
    finally:
        studio.client.assistants.delete(assistant)
    assert (page.console_errors(), too_wide(page), studio.complaints(), model.remaining) == ([], [], [], 0)
    assert {url for url in page.requests() if not url.startswith(("chrome:", site, studio.url))} == set()


def test_bug_is_fixed_in_the_chat_page_and_the_chat_continues(
    studio: Studio, site: str, page: Page, folder: Path, tmp_path: Path
) -> None:
    with (
        native_server(use(READ), use(EDIT), DONE, Say("You are *welcome*.")) as model,
        chat(studio, site, page, folder, model),
    ):
        say(page, TASK)
        wait_for(page, "add now adds.")
        seen = page.text()
        page.screenshot(screenshots(tmp_path) / "chat.png", full_page=False)
        say(page, "Thank you.")
        wait_for(page, "You are welcome.")
    texts = (TASK, "read_file", "Tool Result: read_file", "edit_file", "old_str", "a - b", "new_str", "a + b")
    assert [words for words in (*texts, "Tool Result: edit_file", "add now adds.") if words not in seen] == []
    assert changed_files(folder, CALC) == {"calc.py": MENDED}


@pytest.mark.parametrize(
    ("button", "written", "files_after"),
    [
        ("Accept", {}, {"calc.py": MENDED}),
        ("Submit", {"New Str": "b + a"}, {"calc.py": MENDED.replace("a + b", "b + a")}),
        ("Ignore", {}, {}),
    ],
)
def test_change_is_approved_edited_or_rejected_in_the_chat_page(
    studio: Studio,
    site: str,
    page: Page,
    folder: Path,
    tmp_path: Path,
    button: str,
    written: dict[str, str],
    files_after: dict[str, str],
) -> None:
    with native_server(use(READ), use(EDIT), DONE) as model, chat(studio, site, page, folder, model, mode="ask"):
        say(page, TASK)
        wait_for(page, "Edit/Accept")
        assert (changed_files(folder, CALC), len(model.requests)) == ({}, 2)
        page.screenshot(screenshots(tmp_path) / f"chat-{button.split(maxsplit=1)[0].lower()}.png", full_page=False)
        for label, text in written.items():
            write(page, label, text)
        press_button(page, button)
        wait_for(page, "add now adds.")
    assert changed_files(folder, CALC) == files_after


def test_change_is_shown_as_a_diff_and_rejected_with_a_reason(
    studio: Studio, site: str, page: Page, folder: Path, tmp_path: Path
) -> None:
    with native_server(use(EDIT), DONE) as model, chat(studio, site, page, folder, model, mode="ask"):
        say(page, TASK)
        wait_for(page, "Edit/Accept")
        press_button(page, "Description")
        wait_for(page, "+    return a + b")
        page.screenshot(screenshots(tmp_path) / "chat-difference.png", full_page=False)
        assert "-    return a - b" in page.text()
        page.open(page.driver.current_url)  # the question is still there after a reload
        wait_for(page, "Edit/Accept")
        write(page, "Response", "Leave it.")
        press_button(page, "Send Response")
        wait_for(page, "add now adds.")
        told_to_the_model = str(model.requests[-1]["messages"][-1]["content"])
    assert (changed_files(folder, CALC), "Leave it." in told_to_the_model) == ({}, True)


def say(page: Page, text: str) -> None:
    """Type a message, and send it."""
    page.wait_for("return document.querySelector('textarea[placeholder^=Type]')").click()
    page.press(text, Keys.ENTER)


def write(page: Page, label: str, text: str) -> None:
    """Replace what a field of the question holds."""
    field = page.wait_for(
        "return [...document.querySelectorAll('p, label')].find(each => each.textContent === arguments[0])"
        "?.parentElement.querySelector('textarea')",
        label,
    )
    field.click()
    field.send_keys(Keys.CONTROL, "a")
    field.send_keys(text)


def press_button(page: Page, name: str) -> None:
    """Press the button with this name."""
    script = "return [...document.querySelectorAll('button')].find(each => each.textContent === arguments[0])"
    page.run("arguments[0].click()", page.wait_for(script, name))


def wait_for(page: Page, words: str) -> None:
    """Wait until these words can be read."""
    page.wait_for("return document.body.innerText.includes(arguments[0])", words)


def too_wide(page: Page) -> list[str]:
    """Elements outside of the window, except the drawer with older chats to the left of it."""
    beside = re.compile(r"reaches from -\d+ to (-\d+|0) px")
    return [element for element in page.overflow() if not beside.search(element)]
