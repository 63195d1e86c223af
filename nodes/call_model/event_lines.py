"""Server-sent events, from bytes as they arrive: their `data`, and nothing else of them.

A line may be cut anywhere, inside a character or between the halves of its end too. An event counts when the empty line
after it has come. Comments, names, ids and retry times of events say nothing here.
Source: https://html.spec.whatwg.org/multipage/server-sent-events.html#event-stream-interpretation
"""

from typing import Final

_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"


class EventLines:
    """One stream of events. Takes time that is linear in what is fed, however it is cut."""

    def __init__(self) -> None:
        """Nothing has come."""
        self._line: list[bytes] = []
        self._data: list[bytes] = []
        self._after_return = False
        self._first = True

    def feed(self, part: bytes) -> list[bytes]:
        """Take what came; the data of the events that are whole by now."""
        if self._after_return and part:
            self._after_return = False
            part = part.removeprefix(b"\n")
        if b"\n" not in part and b"\r" not in part:
            if part:
                self._line.append(part)
            return []
        self._after_return = part.endswith(b"\r")
        text = b"".join((*self._line, part))
        if self._first:
            text, self._first = text.removeprefix(_BYTE_ORDER_MARK), False
        lines = text.splitlines()
        self._line = [] if text.endswith((b"\n", b"\r")) else [lines.pop()]
        return self._events(lines)

    def _events(self, lines: list[bytes]) -> list[bytes]:
        events = []
        for line in lines:
            if not line:
                if self._data:
                    events.append(b"\n".join(self._data))
                    self._data = []
            elif line.startswith(b"data:"):
                self._data.append(line[6:] if line.startswith(b"data: ") else line[5:])
            elif line == b"data":
                self._data.append(b"")
        return events
