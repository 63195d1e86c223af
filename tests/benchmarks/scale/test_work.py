import os
from multiprocessing import Pipe
from pathlib import Path
from threading import Thread

import pytest

from benchmarks.scale import work
from benchmarks.scale.ways import Place
from benchmarks.scale.work import Job, serve


def test_a_process_that_cannot_work_says_why(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def no_way(*_: object) -> None:
        raise OSError("nothing goes")

    monkeypatch.setattr(work, "WAYS", {"threads": no_way})
    monkeypatch.setattr(os, "environ", dict(os.environ, OPENAI_API_KEY="sk-somebody"))
    ours, its = Pipe()
    with ours, its:
        working = Thread(target=serve, args=(its, Job("threads", Place("", str(tmp_path)), {"HOME": "/none"})))
        working.start()
        assert ours.recv() == "OSError: nothing goes"
        working.join()
    assert ("OPENAI_API_KEY" in os.environ, os.environ["HOME"]) == (False, "/none")
