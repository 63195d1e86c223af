"""How a run and its commands are named in a few words."""

from datetime import UTC, datetime, timedelta, timezone

from mendgraph.graph.runs.run_words import chat_command, resume_command, when_words

TIMES = {
    "2026-11-20T10:05:09.123+00:00": "today 12:05",
    "2026-11-19T22:00:00.000+00:00": "today 00:00",
    "2026-11-19T21:59:59.999+00:00": "Nov 19 23:59",
    "2026-01-02T03:04:05.000+00:00": "Jan 02 05:04",
    "2025-12-31T21:00:00.000+00:00": "2025-12-31",
}


def test_run_is_shown_with_a_short_local_time_and_its_commands() -> None:
    now, zone = datetime(2026, 11, 20, 11, tzinfo=UTC), timezone(timedelta(hours=2))
    assert {time: when_words(time, now, zone) for time in TIMES} == TIMES
    assert resume_command("3f2a9c01" + "0" * 24, ".") == "mendgraph resume 3f2a9c01"
    assert chat_command("my run", "/a b") == "mendgraph chat --run 'my run' --root '/a b'"
