"""A real terminal for tests: mendgraph in a tmux of the test's own, whose keys are pressed and whose screen is read."""

import os
import re
import select
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Final, Self
from uuid import uuid4

import pytest

COMMAND: Final = Path(sys.executable).parent / "mendgraph"
DEADLINE_S: Final = 60.0
ENDED: Final = "the command ended with "

needs_tmux = pytest.mark.skipif(
    shutil.which("tmux") is None, reason="tmux is not installed: `make browser` installs it"
)


class Tmux:
    """One command in one pane. Use it as a context manager: it ends the tmux that it began, and all that runs there.

    `folder` is the current folder; the homes and the records of the command lie beside it. `screen` waits for nothing,
    `wait` for a text, as long as a loaded machine may take. The pane stays when the command has ended.
    """

    def __init__(
        self,
        folder: Path,
        *words: str,
        size: tuple[int, int] = (100, 50),
        environment: Mapping[str, str] | None = None,
        program: Path = COMMAND,
    ) -> None:
        self._folder, self._words, self._size = folder, (str(program), *words), size
        self._server = f"mendgraph-{uuid4().hex[:12]}"
        self._pipe = folder.parent / f"{self._server}.pipe"
        self._environment = _environment(folder.parent, environment or {})

    def __enter__(self) -> Self:
        os.mkfifo(self._pipe)
        self._output = os.open(self._pipe, os.O_RDWR | os.O_NONBLOCK)
        width, height = map(str, self._size)
        shell = f'trap : INT; {shlex.join(self._words)}; printf "\\n{ENDED}%d\\n" $?; read _'
        try:
            self._tmux("new-session", "-d", "-x", width, "-y", height, "-c", str(self._folder), "sh", "-c", shell)
            self._tmux("pipe-pane", f"cat > {shlex.quote(str(self._pipe))}")
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        try:
            subprocess.run(
                ["tmux", "-L", self._server, "kill-server"], check=False, env=self._environment, capture_output=True
            )
        finally:
            os.close(self._output)

    def press(self, *keys: str) -> None:
        """Press keys, in tmux's words for them (`Enter`, `C-c`, `M-Enter`)."""
        self._tmux("send-keys", *keys)

    def type(self, text: str, *keys: str) -> None:
        """Type a text, then press keys."""
        self._tmux("send-keys", "-l", "--", text)
        if keys:
            self.press(*keys)

    def paste(self, text: str) -> None:
        """Paste a text as terminals do: in brackets, where the program has asked for them."""
        self._tmux("set-buffer", "--", text)
        self._tmux("paste-buffer", "-p")

    def screen(self, *, colours: bool = False, joined: bool = False) -> str:
        """All that was shown, from the beginning; `joined` puts the parts of a line together that the edge has cut."""
        options = ["-e"] * colours + ["-J"] * joined
        return self._tmux("capture-pane", "-p", "-S", "-", *options).rstrip()

    def wait(self, text: str, times: int = 1) -> str:
        """Wait until the screen has this text so many times; the screen, with whole lines."""
        deadline = time.monotonic() + DEADLINE_S
        while (screen := self.screen(joined=True)).count(text) < times:
            seconds_left = deadline - time.monotonic()
            if seconds_left <= 0 or (ENDED in screen and ENDED not in text):
                raise AssertionError(f"{text!r} is not there {times} times:\n{screen}")
            if select.select([self._output], [], [], seconds_left)[0]:
                os.read(self._output, 65_536)
        return screen

    def exit_code(self) -> int:
        """Wait for the command's end, and tell how it ended."""
        match = re.search(rf"{ENDED}(\d+)", self.wait(ENDED))
        assert match is not None
        return int(match[1])

    def _tmux(self, *words: str) -> str:
        called = ["tmux", "-u", "-L", self._server, "-f", "/dev/null", *words]
        done = subprocess.run(
            called, check=False, env=self._environment, capture_output=True, text=True, timeout=DEADLINE_S
        )
        assert done.returncode == 0, (words, done.stderr)
        return done.stdout


def _environment(home: Path, more: Mapping[str, str]) -> dict[str, str]:
    """That of the tests, which names no endpoint, with homes of the command's own."""
    variables = {
        name: value
        for name, value in os.environ.items()
        if name not in {"TMUX", "TMUX_PANE", "TERM", "COLUMNS", "LINES"}
    }
    homes = {name: str(home / "home" / name.lower()) for name in ("XDG_DATA_HOME", "XDG_CONFIG_HOME", "XDG_CACHE_HOME")}
    return {**variables, "HOME": str(home / "home"), **homes, "LANG": "C.UTF-8", "SHELL": "/bin/sh", **more}
