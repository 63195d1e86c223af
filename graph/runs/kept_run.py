"""A run that is written down: its short name, where it stands, when that was, and how it is taken up again. Pure."""

import re
import shlex
from dataclasses import dataclass
from datetime import datetime, tzinfo

_OUR_ID = re.compile(r"[0-9a-f]{32}")
_SHORT = 8
"""Characters of a random id that tell the runs of one workspace apart."""


@dataclass(frozen=True)
class KeptRun:
    """A run that is written down, and how it is taken up again. `root` is the folder as it was named, "." by default.

    `can_go_on`: it has not given its answer yet.
    """

    run_id: str
    can_go_on: bool
    root: str = "."

    @property
    def resume(self) -> str | None:
        """The command that goes on with it, None where it has finished."""
        return self.command("resume", short_id(self.run_id)) if self.can_go_on else None

    def command(self, *words: str) -> str:
        """A command of ours in the same folder, as a shell takes it."""
        return command_line(self.root, *words)

    def after_a_task(self) -> str:
        """What is said of it when a task has ended."""
        return f"run {short_id(self.run_id)}" + (f"; go on with: {self.resume}" if self.resume else "")

    def when_finished(self) -> str:
        """What is said of it when nothing is left to do."""
        talk = self.command("chat", "--run", short_id(self.run_id))
        return f"run {short_id(self.run_id)} has finished; ask it more with: {talk}"

    def after_a_chat(self) -> str:
        """What is said of it when a chat has ended."""
        talk = self.command("chat", "--run", short_id(self.run_id))
        return f"run {short_id(self.run_id)}; go on with: {talk}"


def short_id(run_id: str) -> str:
    """The beginning of an id that we made up; one that a person chose is shown whole."""
    return run_id[:_SHORT] if _OUR_ID.fullmatch(run_id) else run_id


def state_words(standing: str, reason: str) -> str:
    """Where a run stands; for one that ended early also why."""
    return f"{standing}: {reason.replace('_', ' ')}" if standing in {"stopped", "failed"} and reason else standing


def when_words(time: str, now: datetime, zone: tzinfo | None = None) -> str:
    """An ISO time as `today 13:05`, `Nov 20 13:05` or `2025-11-20`; `zone` is the local one by default."""
    there, here = datetime.fromisoformat(time).astimezone(zone), now.astimezone(zone)
    if there.date() == here.date():
        return f"today {there:%H:%M}"
    return f"{there:%b %d %H:%M}" if there.year == here.year else f"{there:%Y-%m-%d}"


def command_line(root: str, *words: str) -> str:
    """A command of ours in the folder `root`, as a shell takes it."""
    return shlex.join(["mendgraph", *words, *(() if root == "." else ("--root", root))])
