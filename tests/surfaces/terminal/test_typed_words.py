"""The terminal of `TypedWords`: restored after the process, unchanged by a background job, or closed."""

import subprocess
import sys

from tests.extent import slow

TERMINAL = """
import asyncio, os, pty, signal, sys, termios
from mendgraph.graph.terminal.process_end import leave_at_once
from mendgraph.graph.terminal.status_line import TypedWords

results = os.fdopen(os.dup(1), "w", buffering=1)

def echoes():
    return bool(termios.tcgetattr(0)[3] & termios.ECHO)

async def read_and_leave():
    with TypedWords(0, print).reading():
        results.write(f"reads, echo {echoes()}\\n")
        leave_at_once(0)

async def read_until_gone():
    loop = asyncio.get_running_loop()
    sent = []
    words = TypedWords(0, sent.append)
    with words.reading():
        os.write(1, b"type")
        while not words.text.endswith("more"):
            await asyncio.sleep(0.01)
        results.write(f"sent {sent}, typed {words.text.split()}\\n")
        os.write(1, b"hang up")
        while True:
            try:
                os.tcgetpgrp(0)
            except OSError:
                break
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.05)
        results.write(f"reads what is gone: {loop.remove_reader(0)}\\n")

def job(background):
    child = os.fork()
    if child == 0:
        if background:
            os.setpgid(0, 0)
        asyncio.run(read_and_leave())
    _, status = os.waitpid(child, os.WUNTRACED)
    if os.WIFSTOPPED(status):
        os.kill(child, signal.SIGKILL)
    results.write(f"stopped {os.WIFSTOPPED(status)}, echo {echoes()}\\n")

pid, master = pty.fork()
if pid == 0:
    job(background=False)
    job(background=True)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    asyncio.run(read_until_gone())
    leave_at_once(0)

screen = b""
while b"type" not in screen:
    screen += os.read(master, 1_000)
os.write(master, b"hello\\r/undo\\rmore")
while b"hang up" not in screen:
    screen += os.read(master, 1_000)
os.close(master)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""


@slow
def test_terminal_is_restored_commands_are_not_sent_and_a_closed_terminal_is_not_read() -> None:
    command = [sys.executable, "-c", TERMINAL]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    foreground = ["reads, echo False", "stopped False, echo True"]
    background = ["reads, echo True", "stopped False, echo True"]
    typed = "sent ['hello'], typed ['/undo', 'more']"
    assert done.stdout.splitlines() == [*foreground, *background, typed, "reads what is gone: False"]
