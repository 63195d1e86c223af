"""A short sweep leaves out what makes no difference, and nothing else."""

from tests.crash.turning_points import turning_points, visited

TRACE = (
    "mkdir data",
    "fsync data",
    "pwrite64 store.sqlite-wal",
    "pwrite64 store.sqlite-wal",
    "pwrite64 store.sqlite-wal",
    "fdatasync store.sqlite-wal",
    "pwrite64 store.sqlite-wal",
    "write a.txt",
    "write a.txt",
    "renameat a.txt",
)


def test_of_the_pages_of_a_transaction_the_last_counts_and_no_sync() -> None:
    assert turning_points(TRACE) == [1, 5, 7, 8, 9, 10]


def test_sync_may_fail_and_so_may_the_first_page() -> None:
    assert turning_points(TRACE, failing=True) == [1, 2, 3, 6, 7, 8, 9, 10]


def test_whole_sweep_visits_all_and_a_short_one_every_forty_eighth() -> None:
    assert visited(TRACE, extent="all") == visited(TRACE, failing=True, extent="all") == [*range(1, 11)]
    assert visited(TRACE * 9, extent="some") == turning_points(TRACE * 9)[::48]
    assert visited(TRACE * 9, failing=True, extent="some") == turning_points(TRACE * 9, failing=True)[::48]
    assert visited(TRACE, extent="turns") == turning_points(TRACE)
    assert visited(TRACE, failing=True, extent="turns") == turning_points(TRACE, failing=True)
