"""The prompt of a chat, at a terminal with scripted keys."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import pytest
from prompt_toolkit.completion import CompleteEvent
from prompt_toolkit.document import Document
from prompt_toolkit.input import PipeInput, create_pipe_input
from prompt_toolkit.output import DummyOutput

from mendgraph.graph.terminal.prompt_input import MOST_OFFERED, ChatCompleter, PromptInput
from mendgraph.nodes.workspace.store.user_files import RequestHistory
from tests.extent import slow

FILES = ["README.md", "calc.py", "pkg/calc_words.py", "pkg/new.py", "bad\x1bname.py"]
COMMANDS = {"/diff": "what was changed; more", "/undo": "take back", "/hub:Ask": ""}


class Requests(RequestHistory):
    """Those of the chats before, in memory."""

    def __init__(self, *earlier: str) -> None:
        self.stored = list(earlier)

    def load(self) -> list[str]:
        return list(self.stored)

    def add(self, request: str) -> None:
        self.stored.append(request)


@contextmanager
def prompt(requests: Requests, scrub: Callable[[str], str] = str) -> Iterator[tuple[PromptInput, PipeInput]]:
    with create_pipe_input() as keys:
        completer = ChatCompleter(lambda: COMMANDS, lambda: FILES)
        yield PromptInput(requests, scrub, completer, terminal=(keys, DummyOutput())), keys


def type_line(text: str, *earlier: str) -> str:
    with prompt(Requests(*earlier)) as (ask, keys):
        keys.send_text(text)
        return ask("You: ")


KEYS = {
    "fix it\r": "fix it",
    "one\x1b\rtwo\r": "one\ntwo",
    "one\ntwo\r": "one\ntwo",
    "one\\\rtwo\r": "one\ntwo",
    "a\\b\r": "a\\b",
    "\x1b[200~one\r\ntwo\n  three\x1b[201~\r": "one\ntwo\n  three",
    "wrong\x03right\r": "right",
    "\x03right\r": "right",
    "\x1b[A\r": "newest",
    "\x1b[A\x1b[A\r": "two\nlines",
    "\x12lin\r\r": "two\nlines",
}


@slow
def test_keys_start_a_new_line_paste_and_browse_the_history() -> None:
    assert {keys: type_line(keys, "two\nlines", "newest") for keys in KEYS} == KEYS


def test_second_ctrl_c_leaves_the_prompt() -> None:
    for keys in ("\x03\x03", "wrong\x03\x03", "one\x03two\x03\x03"):
        with pytest.raises(KeyboardInterrupt):
            type_line(keys)


def test_history_is_redacted_and_has_no_consecutive_duplicates() -> None:
    requests = Requests("first")
    with prompt(requests, lambda text: text.replace("hunter2", "***")) as (ask, keys):
        for line in ("use hunter2", "use hunter2", " ", "/diff"):
            keys.send_text(f"{line}\r")
            assert ask("You: ") == line
    assert requests.stored == ["first", "use ***", "/diff"]


def completions_of(text: str, *, requested: bool = False, files: Sequence[str] = FILES) -> list[tuple[str, int]]:
    completer = ChatCompleter(lambda: COMMANDS, lambda: files)
    event = CompleteEvent(completion_requested=requested)
    return [
        (completion.text, completion.start_position) for completion in completer.get_completions(Document(text), event)
    ]


def test_completion_offers_commands_at_the_start_and_files_after_an_at_sign_or_tab() -> None:
    assert completions_of("/") == [("/diff", -1), ("/undo", -1), ("/hub:Ask", -1)]
    assert completions_of("/hub:a") == completions_of("/hub:A") == [("/hub:Ask", -6)]
    assert completions_of("/U") == [("/undo", -2)]
    assert completions_of("/undo ") == completions_of("a /") == completions_of("\n/") == []
    assert completions_of("@REA") == [("README.md", -4)]
    assert completions_of("see @calc") == [("calc.py", -5), ("pkg/calc_words.py", -5)]
    assert completions_of("see calc") == completions_of("mail me@calc") == []
    assert completions_of("see (CALC", requested=True) == [("calc.py", -4), ("pkg/calc_words.py", -4)]
    assert completions_of("see @bad") == completions_of("see ", requested=True) == []
    assert len(completions_of("@", files=[f"{number}.py" for number in range(1_000)])) == MOST_OFFERED
