"""A terminal for tests: a grid of rows that wraps, scrolls and obeys the few codes that the status line uses."""

import re
from typing import Final

from rich.cells import get_character_cell_size

_CODE: Final = re.compile(r"\x1b\[(\d*(?:;\d+)*)([A-Za-z])|\x1b([DM78])|(.)", re.DOTALL)
_TAB: Final = 8


class SmallTerminal:
    """What is on the screen (`rows`) and what has left it at the top (`history`). It is also the stream to write to.

    `waits` says that the cursor stands at the right edge and wraps before the next sign, as on real terminals.
    """

    def __init__(self, width: int, height: int = 6) -> None:
        self.width, self.height = width, height
        self.rows: list[list[str]] = [[]]
        self.history: list[str] = []
        self.row = self.column = 0
        self.waits = False
        self._kept = (0, 0)

    def isatty(self) -> bool:
        return True

    def flush(self) -> None:
        """Everything is shown at once."""

    def write(self, text: str) -> int:
        for number, code, short, character in _CODE.findall(text):
            if character:
                self._show(character)
            else:
                self._obey(short or code, number)
        return len(text)

    @property
    def shown(self) -> list[str]:
        """All lines from the first that was ever written, without the empty rows at the end."""
        lines = self.history + ["".join(row).rstrip() for row in self.rows]
        while lines and not lines[-1]:
            lines.pop()
        return lines

    def _show(self, character: str) -> None:
        if character == "\n":
            self._down()
            self.column, self.waits = 0, False
        elif character == "\r":
            self.column, self.waits = 0, False
        elif character == "\t":
            self.column = min((self.column // _TAB + 1) * _TAB, self.width - 1)
        else:
            self._put(character)

    def _put(self, character: str) -> None:
        cells = get_character_cell_size(character)
        if self.waits or self.column + cells > self.width:
            self._show("\n")
        row = self.rows[self.row]
        row += [" "] * (self.column + cells - len(row))
        row[self.column : self.column + cells] = [character, *[""] * (cells - 1)]
        self.column += cells
        if self.column == self.width:
            self.column, self.waits = self.width - 1, True

    def _obey(self, code: str, number: str) -> None:
        if code == "D":
            self._down()
        elif code == "M":
            self.row = max(0, self.row - 1)
        elif code == "7":
            self._kept = (self.row, self.column)
        elif code == "8":
            (self.row, self.column), self.waits = self._kept, False
        elif code in {"J", "K"}:
            del self.rows[self.row][0 if number == "2" else self.column :]
            if code == "J":
                del self.rows[self.row + 1 :]
        else:
            assert code == "m", f"{number}{code} is not known"

    def _down(self) -> None:
        if self.row == self.height - 1:
            self.history.append("".join(self.rows.pop(0)).rstrip())
            self.rows.append([])
            return
        self.row += 1
        if self.row == len(self.rows):
            self.rows.append([])
