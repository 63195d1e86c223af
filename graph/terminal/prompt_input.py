"""The prompt of a chat at a real terminal: history, several lines, completion. Imports prompt_toolkit."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final

from prompt_toolkit import PromptSession
from prompt_toolkit.buffer import Buffer
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document
from prompt_toolkit.enums import DEFAULT_BUFFER
from prompt_toolkit.filters import Condition, has_focus
from prompt_toolkit.formatted_text import StyleAndTextTuples
from prompt_toolkit.history import History
from prompt_toolkit.input import Input
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.output import ColorDepth, Output
from prompt_toolkit.renderer import CPR_Support

from mendgraph.nodes.language.display import plain
from mendgraph.nodes.workspace.store.user_files import RequestHistory

MOST_OFFERED: Final = 200
"""Most names in a menu."""

_MENU_LINES: Final = 9
"""Lines of the menu below the prompt."""

_WORD: Final = re.compile(r"(?<![^\s'\"`(),;])[^\s'\"`(),;]*$")
_AT: Final = re.compile(r"(?:^|(?<=[\s'\"`(]))@[^\s'\"`(),;]*$")


class ScrubbedHistory(History):
    """The history for prompt_toolkit: requests without secrets, and no request twice in a row."""

    def __init__(self, requests: RequestHistory, scrub: Callable[[str], str]) -> None:
        super().__init__()
        self._requests = requests
        self._scrub = scrub

    def load_history_strings(self) -> Iterable[str]:
        """The newest first."""
        return reversed(self._requests.load())

    def append_string(self, string: str) -> None:
        """Add a request that was sent."""
        clean = self._scrub(string)
        if clean.strip() and self._loaded_strings[:1] != [clean]:
            super().append_string(clean)

    def store_string(self, string: str) -> None:
        """Store a request for later chats."""
        self._requests.add(string)


class ChatCompleter(Completer):
    """Completes commands after "/" at the beginning of a line, and file names: after "@" as typed, otherwise with Tab.

    `commands` returns the help of the commands. `files` returns the workspace's files; it is called once for each line
    that needs them.
    """

    def __init__(self, commands: Callable[[], Mapping[str, str]], files: Callable[[], Sequence[str]]) -> None:
        self._commands = commands
        self._files = files
        self._names: Sequence[str] | None = None

    def forget(self) -> None:
        """Read the file names again at the next completion."""
        self._names = None

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterator[Completion]:
        """Yield the completions of the word before the cursor."""
        before = document.text_before_cursor
        if before.startswith("/") and not re.search(r"\s", before):
            for name, help_text in self._commands().items():
                if name.casefold().startswith(before.casefold()):
                    yield Completion(name, -len(before), display_meta=help_text.partition(";")[0])

            return

        at = _AT.search(before)
        word = at or _WORD.search(before)

        if word is not None and (at or (complete_event.completion_requested and word.group())):
            typed = word.group()
            if at:
                typed = typed.removeprefix("@")

            for path in self._matching(typed):
                yield Completion(path, -len(word.group()), display=plain(path))

    def _matching(self, prefix: str) -> list[str]:
        """Return paths with this prefix, then paths with a component that has it; at most `MOST_OFFERED`."""
        if self._names is None:
            self._names = self._files()

        folded = prefix.casefold()
        first = [path for path in self._names if path.casefold().startswith(folded)]
        then = [path for path in self._names if f"/{folded}" in path.casefold() and path not in set(first)]

        return [path for path in (*first, *then) if path.isprintable()][:MOST_OFFERED]


class PromptInput:
    """Reads the requests of a chat. Raises EOFError for Ctrl-D, and KeyboardInterrupt for Ctrl-C pressed twice.

    Enter sends; Alt-Enter, Ctrl-J, or Enter after a backslash begins a new line; pasted lines are one request.
    """

    def __init__(
        self,
        requests: RequestHistory,
        scrub: Callable[[str], str],
        completer: ChatCompleter,
        *,
        colours: bool = True,
        terminal: tuple[Input, Output] | None = None,
    ) -> None:
        """`terminal` is the process's own by default."""
        self._completer = completer
        self._leaving = False
        input_stream, output_stream = terminal or (None, None)
        color_depth = None
        if not colours:
            color_depth = ColorDepth.DEPTH_1_BIT

        self._session: PromptSession[str] = PromptSession(
            history=ScrubbedHistory(requests, scrub),
            completer=completer,
            complete_while_typing=Condition(self._completes_as_typed),
            complete_in_thread=True,
            reserve_space_for_menu=_MENU_LINES,
            multiline=True,
            prompt_continuation=_continuation,
            key_bindings=self._keys(),
            color_depth=color_depth,
            enable_suspend=True,
            rprompt=self._hint,
            include_default_pygments_style=False,
            input=input_stream,
            output=output_stream,
        )
        self._session.default_buffer.on_text_changed += self._keep_hint
        # A prompt that knows where it stands fills the screen to its bottom, with empty lines.
        self._session.app.renderer.cpr_support = CPR_Support.NOT_SUPPORTED

    def __call__(self, prompt: str, typed: str = "") -> str:
        """Return the next request, as it was typed; `typed` is its beginning."""
        self._completer.forget()
        self._leaving = False
        return self._session.prompt(prompt, default=typed)

    def _hint(self) -> StyleAndTextTuples:
        if self._leaving:
            return [("class:hint", "Ctrl-C again or Ctrl-D leaves.")]

        return []

    def _completes_as_typed(self) -> bool:
        before = self._session.default_buffer.document.text_before_cursor
        return before.startswith("/") or _AT.search(before) is not None

    def _keys(self) -> KeyBindings:
        keys = KeyBindings()
        typing = has_focus(DEFAULT_BUFFER)

        @keys.add("enter", filter=typing)
        def send(event: KeyPressEvent) -> None:
            buffer = event.current_buffer
            if _accepts_completion(buffer):
                return

            if buffer.document.char_before_cursor == "\\" and buffer.document.is_cursor_at_the_end:
                buffer.delete_before_cursor()
                begin_line(event)
            else:
                buffer.validate_and_handle()

        @keys.add("escape", "enter", filter=typing)
        @keys.add("c-j", filter=typing)
        def begin_line(event: KeyPressEvent) -> None:
            event.current_buffer.newline(copy_margin=False)

        @keys.add("c-c", filter=typing)
        @keys.add("<sigint>")
        def clear(event: KeyPressEvent) -> None:
            buffer = self._session.default_buffer
            if self._leaving and not buffer.text:
                self._leaving = False  # the hint does not stay on the screen
                event.app.exit(exception=KeyboardInterrupt(), style="class:aborting")
                return

            buffer.reset()
            self._leaving = True

        return keys

    def _keep_hint(self, buffer: Buffer) -> None:
        self._leaving = self._leaving and not buffer.text


def _accepts_completion(buffer: Buffer) -> bool:
    """Return whether Enter accepts a file name from the menu; a command from the menu is sent at once."""
    state = buffer.complete_state
    if state is None or state.current_completion is None or buffer.text.startswith("/"):
        return False

    buffer.complete_state = None
    return True


def _continuation(width: int, _: int, wrapped: int) -> str:
    if wrapped:
        return ""

    return "... ".rjust(width)
