"""A play in a fork of its own: what comes back of it, and what becomes of one that does not end well."""

import os
import threading
from pathlib import Path

import pytest

from tests.crash.fork_server import ForkServer, Played, PlayError, ServerError

MODULE = "tests.crash.sample_plays"


def is_running(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_play_gives_back_what_it_returned_and_said(sample_server: ForkServer) -> None:
    assert sample_server.run("say", "hé\n") == Played(False, 0, "hé\n", "hé\n\nhé\n\n", ())


def test_a_large_answer_comes_whole(sample_server: ForkServer) -> None:
    words = "many " * 100_000
    assert sample_server.run("say", words) == Played(False, 0, words, f"{words}\n{words}\n", ())


def test_each_play_is_counted_from_the_beginning(sample_server: ForkServer, tmp_path: Path) -> None:
    played = [sample_server.run("replace", str(tmp_path)) for _ in range(3)]
    assert [each.calls for each in played] == [5, 5, 5]
    assert sample_server.run("say", "nothing").trace == ()


def test_the_same_play_makes_the_same_calls_on_every_server(sample_servers: list[ForkServer], tmp_path: Path) -> None:
    traces = set()
    for number, server in enumerate(sample_servers * 3):
        (tmp_path / str(number) / "folder").mkdir(parents=True)
        traces.add(server.run("several_calls", str(tmp_path / str(number) / "folder")).trace)
    assert len(traces) == 1


def test_signals_do_what_they_do_by_default(sample_server: ForkServer) -> None:
    assert sample_server.run("signals").value == [True, True, True]


def test_an_exception_is_told_with_its_trace(sample_server: ForkServer) -> None:
    with pytest.raises(PlayError, match=r"fail \(no fault\) ended with status 1 after 0 calls") as told:
        sample_server.run("fail")
    assert "LookupError: what a play should not do" in str(told.value)


def test_a_play_that_leaves_without_a_result_is_told(sample_server: ForkServer) -> None:
    with pytest.raises(PlayError, match=r"leave_early .* ended with status 0 after 0 calls"):
        sample_server.run("leave_early")


def test_a_function_that_is_not_there_is_told(sample_server: ForkServer) -> None:
    with pytest.raises(PlayError, match="no attribute 'nothing'"):
        sample_server.run("nothing")


def test_a_kill_that_is_not_ours_is_told(sample_server: ForkServer) -> None:
    with pytest.raises(PlayError, match=r"kill_itself \(EIO:1\) ended with status -9 after 0 calls"):
        sample_server.run("kill_itself", at=1, how="EIO")


def test_a_play_that_hangs_is_ended_and_says_where(sample_server: ForkServer) -> None:
    with pytest.raises(PlayError, match=r"hang \(no fault\) hung for 0\.2 s after 0 calls") as told:
        sample_server.run("hang", timeout=0.2)
    assert "in hang" in str(told.value)
    assert sample_server.run("say", "next").value == "next"


def test_no_program_outlives_its_play(sample_server: ForkServer) -> None:
    processes = sample_server.run("leave_running").value
    assert [is_running(each) for each in processes] == [False, False]


def test_a_server_that_is_closed_takes_its_play_along(shim_library: Path, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    gone: list[BaseException] = []

    def play(server: ForkServer) -> None:
        try:
            server.run("hang", str(tmp_path / "fifo"))
        except ServerError as error:
            gone.append(error)

    with ForkServer(shim_library, MODULE) as server:
        player = threading.Thread(target=play, args=(server,))
        player.start()
        process = int((tmp_path / "fifo").read_text())
        assert is_running(process)
        server.end()
        player.join()
    assert (len(gone), is_running(process)) == (1, False)


def test_a_server_that_is_gone_is_told(shim_library: Path) -> None:
    with ForkServer(shim_library, MODULE) as server:
        server.end()
        with pytest.raises(ServerError, match="does not answer"):
            server.run("say", "anybody?")


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("import no_such_module", "No module named 'no_such_module'"),
        ("import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()", "starts threads"),
    ],
)
def test_a_module_that_cannot_serve_is_told(
    shim_library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, said: str
) -> None:
    (tmp_path / "bad_plays.py").write_text(source)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(ServerError, match=said), ForkServer(shim_library, "bad_plays"):
        pass
