import os
from pathlib import Path

import psycopg
import pytest

from benchmarks.scale.database import Server, server_cpu_s


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="only Linux tells what a process has: run it there")
def test_what_a_server_does_is_seen(shared_store: str) -> None:
    with psycopg.connect(shared_store, autocommit=True) as database, Server(shared_store) as server:
        database.execute("CREATE TABLE texts (text TEXT)")
        before = server.done()
        for _ in range(7):
            database.execute("INSERT INTO texts SELECT repeat(md5(random()::text), 100) FROM generate_series(1, 100)")
        after = server.done()
        while not server.connections:
            database.execute("SELECT 1")
    assert after.commits - before.commits >= 7  # other tests may use the same server
    assert after.log_bytes > before.log_bytes
    assert after.size >= before.size
    assert after.cpu_s >= before.cpu_s > 0
    assert server.connections == 1


def test_a_server_that_is_not_here_has_no_time(tmp_path: Path) -> None:
    assert server_cpu_s(os.path.join(tmp_path, "gone")) == 0.0
