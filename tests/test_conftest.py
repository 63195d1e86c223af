import os
import tempfile
from pathlib import Path

import hypothesis

from tests.conftest import foreign
from tests.memory_folder import MEMORY


def test_tests_have_a_home_of_their_own() -> None:
    homes = ("HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME")
    assert {name for name in homes if not Path(os.environ[name]).is_dir()} == set()
    temporary = (tempfile.gettempdir(), MEMORY)
    assert [name for name in homes if not any(map(Path(os.environ[name]).is_relative_to, temporary))] == []


def test_what_would_steer_a_run_is_gone() -> None:
    names = ["OPENAI_API_KEY", "LANGSMITH_TRACING", "https_proxy", "MENDGRAPH_ROOT", "MENDGRAPH_RECORD", "PATH"]
    assert foreign(names) == names[:4]
    assert foreign(os.environ) == []


def test_hypothesis_watches_no_clock() -> None:
    assert hypothesis.settings().deadline is None
