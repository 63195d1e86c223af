"""A reply without what a thinking model thought aloud, for endpoints that send thoughts as text.

A call in a thought is no call, and no thought enters the history. A tag counts at the beginning of a line outside of
fenced blocks, so that a file which speaks of such tags keeps them.
"""

import re
from typing import Final

from mendgraph.nodes.records import ModelReply

_CLOSING: Final = {"<think>": "</think>", "<thinking>": "</thinking>", "[THINK]": "[/THINK]"}
_ANY_TAG: Final = re.compile(r"</?think(?:ing)?>|\[/?THINK\]")
_MARK: Final = re.compile(
    r"^ {0,3}(?P<fence>`{3,}|~{3,})|(?P<open><think(?:ing)?>|\[THINK\])|(?P<close></think(?:ing)?>|\[/THINK\])",
    re.MULTILINE,
)
_REST_OF_LINE: Final = re.compile(r"[ \t\r]*(?=\n|\Z)")
_WORD: Final = re.compile(r"\S|\Z")


def without_thoughts(reply: ModelReply) -> ModelReply:
    """The reply with its thoughts moved from `text` to `reasoning`; the same object where its text holds none.

    A thought that is not closed goes on to the end. Where a template wrote the opening tag into the prompt, all that
    comes before a closing tag on a line of its own is a thought.
    """
    if not _ANY_TAG.search(reply.text):
        return reply
    parted = _Parting(reply.text)
    parted.run()
    if not parted.thoughts:
        return reply
    thoughts = (thought.strip() for thought in parted.thoughts)
    reasoning = "\n".join(filter(None, [reply.reasoning, *thoughts]))
    return reply.model_copy(update={"text": "".join(parted.said).strip(), "reasoning": reasoning})


class _Parting:
    """One pass over a text, tag by tag and fence by fence: what is said and what is only thought."""

    def __init__(self, text: str) -> None:
        self.said: list[str] = []
        self.thoughts: list[str] = []
        self._text = text
        self._start = 0  # of what is not decided yet
        self._fence = ""  # that is open
        self._closing = ""  # the tag that ends the thought
        self._spoken = False  # a word was said
        self._last = {opening: text.rfind(closing) for opening, closing in _CLOSING.items()}

    def run(self) -> None:
        for mark in _MARK.finditer(self._text):
            if self._closing:
                if mark["close"] == self._closing:
                    self._take(self.thoughts, mark)
                    self._closing = ""
            elif mark["fence"]:
                self._see_fence(mark["fence"], mark.end())
            elif self._fence:
                continue
            elif mark["open"] and self._opens(mark):
                self._take(self.said, mark)
                self._closing = _CLOSING[mark["open"]]
            elif mark["close"] and not self.thoughts and self._begins_line(mark) and self._ends_line(mark):
                self._take(self.thoughts, mark)
        (self.thoughts if self._closing else self.said).append(self._text[self._start :])

    def _take(self, part: list[str], mark: re.Match[str]) -> None:
        part.append(self._text[self._start : mark.start()])
        self._start = mark.end()

    def _see_fence(self, fence: str, end: int) -> None:
        if not self._fence:
            self._fence = fence
        elif fence.startswith(self._fence) and _REST_OF_LINE.match(self._text, end):
            self._fence = ""

    def _opens(self, mark: re.Match[str]) -> bool:
        """Whether a thought begins here: before all words, or on a new line where it is also closed or goes on."""
        if not self._spoken:
            word = _WORD.search(self._text, self._start)
            if word is not None and word.start() == mark.start():
                return True
            self._spoken = True
        goes_on = self._last[mark["open"]] > mark.start() or self._ends_line(mark)
        return goes_on and self._begins_line(mark)

    def _begins_line(self, mark: re.Match[str]) -> bool:
        return mark.start() == 0 or self._text[mark.start() - 1] == "\n"

    def _ends_line(self, mark: re.Match[str]) -> bool:
        return _REST_OF_LINE.match(self._text, mark.end()) is not None
