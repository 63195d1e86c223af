import os
import sys
from threading import Event, Thread

import pytest

from benchmarks.scale import process


def test_work_takes_time() -> None:
    before = process.cpu_s()
    while process.cpu_s() == before:
        sum(range(100_000))


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="only Linux tells what a process has: run it there")
def test_memory_that_is_taken_is_seen() -> None:
    process.forget_the_peak()
    before = process.resident_bytes()
    taken = bytearray(os.urandom(1)) * 50_000_000
    assert process.peak_bytes() - before > 40_000_000
    assert process.resident_bytes() > 0
    assert len(taken) == 50_000_000


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells what a process has: run it there")
def test_threads_and_handles_are_counted() -> None:
    over = Event()
    threads = [Thread(target=over.wait) for _ in range(5)]
    with process.Peaks() as before:
        pass
    handles = [os.open(os.devnull, os.O_RDONLY) for _ in range(7)]
    for thread in threads:
        thread.start()
    with process.Peaks() as peaks:
        pass
    over.set()
    for thread in threads:
        thread.join()
    for handle in handles:
        os.close(handle)
    assert (peaks.threads - before.threads, peaks.handles - before.handles) == (5, 7)
