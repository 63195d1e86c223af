"""Starts the commands of a shared sandbox. Executed inside of it, by path, without our packages.

    python -I -S shared_launcher.py CHANNEL

CHANNEL is a socket of messages. The request `N` comes with three handles: a file with the command (a dict in the format
of `marshal` with `argv`, `cwd` and `env`), and its outputs. The request `N S` sends the signal S to the command. The
answers are `N` when it is executed, `N C E` if the error E prevents that, and `N C` when it has ended with the exit
code C and all that is left of its session is killed. When CHANNEL is closed this process ends, and with it the sandbox.
"""

import _socket  # `socket` imports much, and each command waits for that
import marshal
import os
import select
import signal
import sys

_NOT_EXECUTED = 127
_MOST_BYTES = 4_096
_HANDLE_BYTES = 4


def _become_command(specification: int, out: int, err: int, failure: int) -> None:
    """Execute the command in a session of its own; never returns. A pipe gets the number of the error."""
    try:
        os.setsid()
        for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores these signals
            signal.signal(number, signal.SIG_DFL)

        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(out, 1)
        os.dup2(err, 2)
        with open(specification, "rb") as stream:
            command = marshal.load(stream)  # noqa: S302 - the agent has written it

        os.chdir(command["cwd"])
        os.execve(command["argv"][0], command["argv"], command["env"])  # noqa: S606 - it is allowed, and in a sandbox
    except OSError as error:
        os.write(failure, b"%d" % (error.errno or 0))
    finally:
        os._exit(_NOT_EXECUTED)


def _signal_session(leader: int, number: int) -> None:
    """Send a signal to all processes of the session."""
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            if os.getsid(int(name)) == leader:
                os.kill(int(name), number)
        except (ProcessLookupError, PermissionError):
            continue


def _end(leader: int) -> int:
    """Reap the first process of a session, kill the others, and return the exit code as a shell does."""
    os.waitid(os.P_PID, leader, os.WEXITED | os.WNOWAIT)  # until it is reaped its number belongs to this session
    _signal_session(leader, signal.SIGKILL)
    code = os.waitstatus_to_exitcode(os.waitpid(leader, 0)[1])

    return code if code >= 0 else 128 - code


def main(handle: int) -> None:
    """Serve the channel until it is closed."""
    os.set_inheritable(handle, False)
    channel = _socket.socket(fileno=handle)
    waiting = select.poll()
    waiting.register(channel, select.POLLIN)
    leaders: dict[int, int] = {}  # by the number of the command
    ends: dict[int, int] = {}  # the number of the command, by the handle of its first process

    while True:
        for ready, _ in waiting.poll():
            if ready in ends:
                number = ends.pop(ready)
                waiting.unregister(ready)
                os.close(ready)
                channel.send(b"%d %d" % (number, _end(leaders.pop(number))))
                continue

            data, messages, _, _ = channel.recvmsg(_MOST_BYTES, _socket.CMSG_SPACE(3 * _HANDLE_BYTES))
            if not data:
                return

            number, *signals = map(int, data.split())
            if signals:
                if number in leaders:
                    _signal_session(leaders[number], signals[0])

                continue

            handles = memoryview(messages[0][2]).cast("i").tolist()
            for inherited in handles:
                os.set_inheritable(inherited, False)

            reader, failure = os.pipe()  # closed by the execution
            child = os.fork()
            if not child:
                _become_command(handles[0], handles[1], handles[2], failure)

            for inherited in (*handles, failure):
                os.close(inherited)

            error = os.read(reader, _MOST_BYTES)
            os.close(reader)
            if error:
                os.waitpid(child, 0)
                channel.send(b"%d %d %s" % (number, _NOT_EXECUTED, error))
                continue

            end = os.pidfd_open(child)
            waiting.register(end, select.POLLIN)
            leaders[number] = child
            ends[end] = number
            channel.send(b"%d" % number)


if __name__ == "__main__":
    main(int(sys.argv[1]))
