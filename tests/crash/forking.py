"""The program behind a `ForkServer`: it has imported the play once and forks itself for each one that is asked for.

A request is a line of JSON on its stdin, an answer one on its stdout. What a play says and what it returns go into
memory files, which are read when it has ended: a play that is killed in the middle of a word blocks nobody.
"""

import ctypes
import faulthandler
import gc
import importlib
import json
import os
import resource
import select
import signal
import sys
import threading
import traceback
from collections.abc import Iterator
from types import ModuleType
from typing import Any, Final, NoReturn

from tests.crash.shim import Shim

SET_PDEATHSIG: Final = 1
SET_CHILD_SUBREAPER: Final = 36
"""Of prctl(2). Source: <linux/prctl.h>."""
LAST_WORDS_SECONDS: Final = 5
"""For a play that hangs to say where."""
END_OF_INPUT: Final = 0
"""The descriptor of the requests; poll(2) reports when its other end is closed."""
LOADED_BY_RUNS: Final = (
    "filelock",
    "langchain_core.tracers.context",
    "langchain_core.tracers.run_collector",
    "langchain_core.tracers.stdout",
    "platformdirs",
    "mendgraph.graph.langchain.endpoint_models",
    "mendgraph.graph.telemetry.spans",
)
"""What a run imports when it needs it: half a second, which is spent once, before the forks."""


def main() -> None:
    """Serve until the requests end: `python -c ... MODULE`."""
    name = sys.argv[1]
    watched = os.environ.pop("LD_PRELOAD", "")  # programs that a play starts are not, and may not even see the file
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background would have these ignored
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)
    faulthandler.enable()  # what hangs is ended by SIGABRT, and says where it was
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    answers = os.dup(1)
    os.dup2(2, 1)
    _control(SET_CHILD_SUBREAPER, 1)
    shim, module = Shim() if watched else None, importlib.import_module(name)
    if "mendgraph.graph.machine.build" in sys.modules:
        for loaded in LOADED_BY_RUNS:
            importlib.import_module(loaded)
    if threading.active_count() > 1:
        raise RuntimeError(f"{name} starts threads when it is imported: {threading.enumerate()}")
    gc.collect()
    gc.freeze()  # what is there already is not looked at again, and so not copied, in any child
    _say(answers, {"ready": os.getpid()})
    with os.fdopen(END_OF_INPUT, "rb", closefd=False) as requests:
        for line in requests:
            _say(answers, _play(shim, module, json.loads(line), answers))


def _play(shim: Shim | None, module: ModuleType, request: dict[str, Any], answers: int) -> dict[str, Any]:
    """What became of one play: how it `ended`, its `calls`, the `value` that it returned, and what it `said`."""
    output, result = os.memfd_create("said"), os.memfd_create("result")
    if shim:
        shim.clear()
    child = os.fork()
    if child == 0:
        os.close(answers)
        _be_the_play(shim, module, request, output, result)
    hung = not _wait_for(child, request["timeout"])
    if hung:
        os.kill(child, signal.SIGABRT)
        if not _wait_for(child, LAST_WORDS_SECONDS):
            os.kill(child, signal.SIGKILL)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    _end_orphans()
    value = _content(result)
    if hung:
        ended = "hung"
    elif status == -signal.SIGKILL and (shim is None or (shim.hit and request["how"].startswith("kill"))):
        ended = "killed"
    elif status == 0 and value:  # who leaves by `os._exit` has returned nothing
        ended = "returned"
    else:
        ended = f"ended with status {status}"
    return {
        "ended": ended,
        "calls": shim.calls if shim else [],
        "value": json.loads(value) if ended == "returned" else None,  # else it may be there in part
        "said": _content(output),
    }


def _be_the_play(shim: Shim | None, module: ModuleType, request: dict[str, Any], output: int, result: int) -> NoReturn:
    status = 1
    try:
        _control(SET_PDEATHSIG, signal.SIGKILL)
        os.setsid()
        nothing = os.open(os.devnull, os.O_RDONLY)
        for descriptor, number in ((nothing, 0), (output, 1), (output, 2)):
            os.dup2(descriptor, number)
        function = getattr(module, request["function"])
        if shim:
            shim.arm(request["at"], request["how"])
        try:
            value = function(request["argument"])
        finally:
            if shim:
                shim.disarm()
        with os.fdopen(result, "w", encoding="utf-8") as file:
            json.dump(value, file)
        status = 0
    except BaseException:  # noqa: BLE001 - whatever it is, it is told, and no code of the server runs in the child
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(status)


def _wait_for(child: int, seconds: float) -> bool:
    """Whether the child ended in time. If nobody is left to be told, it is ended, and so is this process."""
    handle = os.pidfd_open(child)
    try:
        poll = select.poll()
        poll.register(handle, select.POLLIN)
        poll.register(END_OF_INPUT, 0)
        events = poll.poll(seconds * 1000)
    finally:
        os.close(handle)
    if any(descriptor == END_OF_INPUT for descriptor, _ in events):
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        _end_orphans()
        os._exit(0)
    return bool(events)


def _end_orphans() -> None:
    """End what the child has left running. Being their reaper, this process inherits whoever loses a parent."""
    while True:
        try:
            if os.waitpid(-1, os.WNOHANG)[0]:
                continue
        except ChildProcessError:
            return
        for orphan in _children():
            os.kill(orphan, signal.SIGKILL)
        os.waitpid(-1, 0)


def _children() -> Iterator[int]:
    for name in filter(str.isdecimal, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/stat", encoding="utf-8", errors="replace") as file:
                parent = file.read().rpartition(")")[2].split()[1]  # after the program's name, which may hold anything
        except OSError:  # it has ended meanwhile
            continue
        if int(parent) == os.getpid():
            yield int(name)


def _control(option: int, value: int) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl")


def _content(descriptor: int) -> str:
    with os.fdopen(descriptor, "rb") as file:
        file.seek(0)
        return file.read().decode(errors="replace")


def _say(answers: int, answer: dict[str, Any]) -> None:
    line = json.dumps(answer).encode() + b"\n"
    while line:
        line = line[os.write(answers, line) :]
