import pytest

from tests.benchmarks.real_model.tasks.verdicts import TASKS, after


@pytest.mark.parametrize(
    ("name", "path", "old", "new"),
    [
        ("retry_backoff", "retry.py", "base * 2 * attempt", "base * 2 * (attempt + 1)"),
        ("retry_backoff", "retry.py", "min(cap, base * 2 * attempt)", "base * 2**attempt"),
        ("query_string", "query.py", 'pair.split("=")', 'pair.rsplit("=", 1)'),
        ("lru_eviction", "lru.py", "        self._entries.move_to_end(key)\n        if", "        if"),
        ("lru_eviction", "lru.py", "            self._entries.popitem(last=True)", "            pass"),
        ("matrix_multiply", "matrix.py", "for k in range(rows)", "for k in range(columns)"),
        ("matrix_multiply", "matrix.py", "for k in range(rows)", "for k in range(min(rows, inner))"),
        ("rate_limiter", "limiter.py", "len(times) > self.limit", "len(times) >= self.limit - 1"),
        ("rate_limiter", "limiter.py", "times[0] <= now", "times[0] < now"),
    ],
)
def test_wrong_repairs_are_not_accepted(name: str, path: str, old: str, new: str) -> None:
    assert after(name, path, old, new) is not None


def test_one_file_has_the_line_ends_of_windows() -> None:
    assert TASKS["query_string"].files["query.py"].count("\r\n") == 17
