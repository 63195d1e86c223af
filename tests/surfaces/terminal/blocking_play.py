"""The command `mendgraph`, in which one place blocks once.

Where the file `begun` lies beside the workspace, nothing blocks.
"""

import os
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from mendgraph.graph import start
from mendgraph.graph.machine import bound_nodes, build as compiled
from mendgraph.graph.terminal import process_end
from mendgraph.graph.terminal.run_view import RunView
from mendgraph.nodes.workspace.files.workspace import Workspace

BEGUN: Final = "begun"
"""A file beside the workspace that says that it blocks."""


def in_python() -> None:
    """A loop that Python can be interrupted in, and that leaves the processor to others."""
    while True:
        time.sleep(0.001)


def in_c() -> None:
    """The regular expression holds the interpreter's lock for longer than anybody waits."""
    re.fullmatch("(a|a)*b", "a" * 60)


def in_the_kernel() -> None:
    os.read(os.pipe()[0], 1)


HOW: Final = {"python": in_python, "c": in_c, "kernel": in_the_kernel}
WHERE: Final[dict[str, tuple[Any, str]]] = {
    "tool": (Workspace, "list_directory"),
    "guard": (bound_nodes, "judge_calls"),
    "view": (RunView, "read"),
}
NODE_S: Final = 8
SHORT_S: Final = 1.0
"""What is waited for here, in place of what is waited for otherwise. A busy machine needs seconds for a node."""


def main(how: str, where: str) -> int:
    vars(compiled)["NODE_S"] = NODE_S
    vars(start)["STUCK_S"] = vars(process_end)["GRACE_S"] = SHORT_S
    place, name = WHERE[where]
    before: Callable[..., Any] = getattr(place, name)

    def blocked(*args: Any, **kwargs: Any) -> Any:
        if not os.path.exists(f"../{BEGUN}"):
            Path(f"../{BEGUN}").touch()
            HOW[how]()
        return before(*args, **kwargs)

    setattr(place, name, blocked)
    return start.main()
