"""The report of a run as text: what its page says, a line for each block, without what differs from run to run."""

import re
from html.parser import HTMLParser
from typing import Final

BLOCKS: Final = re.compile("h1|h2|h3|h4|p|li|dt|tr|pre|summary|caption|figcaption|article|div")
SKIPPED: Final = re.compile("style|svg|head|nav|footer")
LOOKS: Final = re.compile(r"\b(ok|failed|denied|unusable|now|good|warn|bad|near|full)\b")


class _Blocks(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = [""]
        self._skipping = ""
        self._verbatim = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if self._skipping:
            return
        if SKIPPED.fullmatch(tag):
            self._skipping = tag
        elif BLOCKS.fullmatch(tag):
            looks = LOOKS.findall(dict(attrs).get("class") or "") if tag in {"article", "div"} else []
            self.lines.append("".join(f"[{look}] " for look in looks))
            self._verbatim = tag == "pre"

    def handle_endtag(self, tag: str) -> None:
        if tag == self._skipping:
            self._skipping = ""
        elif tag == "pre":
            self._verbatim = False

    def handle_data(self, data: str) -> None:
        if self._skipping:
            return
        if self._verbatim:
            self.lines[-1] += data
        elif words := " ".join(data.split()):
            self.lines[-1] += f"{words} "


def page_text(html: str, run_id: str, folder: str) -> str:
    """Write what the page says. Times, durations, ids, the folder and tokens of prompts stand as words in capitals."""
    parser = _Blocks()
    parser.feed(html)
    lines = [line.strip() for line in parser.lines]
    text = "\n".join(line for line in lines if line and not line.endswith(" never")) + "\n"
    for pattern, word in (
        (re.escape(folder), "WORKSPACE"),
        (rf"{run_id}|{run_id[:8]}", "RUN"),
        (r"(?<=\brun )[0-9a-f]{8}\b", "OF-ANOTHER-ID"),
        (r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC", "TIME"),
        (r"\b\d+ min \d+ s\b|\b[\d.]+ (ms|s)\b", "DURATION"),
        (r"[\d,]+(?= in\b| tokens$)|(?<=^Input tokens )[\d,]+", "TOKENS"),
        (r"mendgraph \d+\.\d+\S*", "mendgraph VERSION"),
    ):
        text = re.sub(pattern, word, text, flags=re.MULTILINE)
    return text
