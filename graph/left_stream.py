"""The machine's stream, which may be left before its end: the node at work ends, and no other begins. Pure."""

from collections.abc import Generator, Iterator, Mapping
from typing import Any, Self, cast

Part = tuple[str, Any]


class Parts:
    """What LangGraph streams, part by part; close it, however it was left."""

    def __init__(self, stream: Iterator[Any]) -> None:
        """`stream` is what the machine's `stream` gave, with the modes "custom", "updates" and whichever else."""
        self._stream = cast("Generator[Part, None, None]", stream)
        self._at_work = False

    def __iter__(self) -> Self:
        """The parts that are still to come."""
        return self

    def __next__(self) -> Part:
        """The next part. What a node says of its own comes while it is at work, its update once it has ended."""
        mode, part = next(self._stream)
        self._at_work = mode == "custom"
        return mode, part

    def rest(self) -> Iterator[Part]:
        """The parts until the node at work has ended, if one is; those of the terminal too, where it ended the run.

        A stream that is closed sooner waits for the node as well, but may shut its threads down before they have
        handed over what came of it, a reply that is paid for. Source: measured on LangGraph 1.2,
        "cannot schedule new futures after shutdown" in `BackgroundExecutor`.
        """
        ending = False
        for mode, part in self if self._at_work else ():
            yield mode, part
            ending = ending or (mode == "updates" and _ends_the_run(part))
            if mode == "updates" and not ending:
                return

    def close(self) -> None:
        """Leave what has not come."""
        self._stream.close()


def _ends_the_run(updates: Mapping[str, Any]) -> bool:
    """Whether a node named the cause for which the run ends."""
    return any(isinstance(update, Mapping) and update.get("stop") for update in updates.values())
