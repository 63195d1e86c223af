"""Bug repairs, first part: small programs with one wrong line, and the tests that their user did not write.

The repairs are sorted by what their user gives: programs with and without `>>>` examples, and in both those whose
request has an equation before those that are told in words.
"""

from benchmarks.real_model.checking import Holds
from benchmarks.real_model.task import Task, replace_once

STATS = r'''"""Descriptive statistics for short lists of numbers."""

from collections import Counter


def mean(values):
    """Arithmetic mean.

    >>> mean([2, 4, 9])
    5.0
    """
    if not values:
        raise ValueError("mean of an empty list")
    return sum(values) / len(values)


def median(values):
    """Middle value, or the mean of the two values in the middle.

    >>> median([7, 1, 3])
    3
    >>> median([1, 2, 3, 4])
    2.5
    """
    if not values:
        raise ValueError("median of an empty list")
    ordered = sorted(values)
    middle = len(ordered) // 2
    if len(ordered) % 2:
        return ordered[middle]
    return (ordered[middle] + ordered[middle - 2]) / 2


def mode(values):
    """Most frequent value; the smallest of them if there are several.

    >>> mode([4, 1, 4, 1, 2])
    1
    """
    counts = Counter(values)
    highest = max(counts.values())
    return min(value for value, count in counts.items() if count == highest)
'''

CALENDAR_MATH = r'''"""Arithmetic with months and weekdays."""

from calendar import monthrange
from datetime import date, timedelta


def add_months(start, months):
    """The same day some months later, or the last day of that month if it is shorter.

    >>> add_months(date(2024, 1, 31), 1)
    datetime.date(2024, 2, 29)
    >>> add_months(date(2023, 11, 15), 1)
    datetime.date(2023, 12, 15)
    """
    year = start.year + (start.month + months) // 12
    month = (start.month - 1 + months) % 12 + 1
    day = min(start.day, monthrange(year, month)[1])
    return date(year, month, day)


def next_weekday(start, weekday):
    """The first date after `start` that falls on `weekday` (Monday is 0).

    >>> next_weekday(date(2024, 5, 1), 0)
    datetime.date(2024, 5, 6)
    """
    ahead = (weekday - start.weekday() - 1) % 7 + 1
    return start + timedelta(days=ahead)


def age_on(birthday, today):
    """Full years between two dates.

    >>> age_on(date(2000, 6, 15), date(2024, 6, 14))
    23
    """
    before_birthday = (today.month, today.day) < (birthday.month, birthday.day)
    return today.year - birthday.year - before_birthday
'''

PATHS = r'''"""Clean up paths that people have typed."""


def normalise(path):
    """Take out empty parts and dots, and resolve two dots where that is possible.

    >>> normalise("a//b/./c/")
    'a/b/c'
    >>> normalise("a/b/../c")
    'a/c'
    >>> normalise("/../etc")
    '/etc'
    >>> normalise("../lib")
    '../lib'
    >>> normalise("")
    '.'
    """
    absolute = path.startswith("/")
    parts = []
    for part in path.split("/"):
        if part in ("", "."):
            continue
        if part != "..":
            parts.append(part)
        elif parts and parts[-1] != "..":
            parts.pop()
        elif absolute:
            parts.append(part)
    text = "/".join(parts)
    return "/" + text if absolute else text or "."


def join(folder, name):
    """A name as seen from a folder.

    >>> join("src/app", "../main.py")
    'src/main.py'
    """
    return normalise(name if name.startswith("/") else f"{folder}/{name}")


def extension(path):
    """What follows the last dot of the file name, without the dot.

    >>> extension("a.b/archive.tar.gz")
    'gz'
    >>> extension("a.b/Makefile")
    ''
    """
    name = normalise(path).rpartition("/")[2]
    return name.rpartition(".")[2] if "." in name.lstrip(".") else ""
'''

INTERVALS = r'''"""Closed intervals as pairs (start, end)."""


def overlaps(first, second):
    """Whether two intervals share at least one point.

    >>> overlaps((1, 3), (3, 5))
    True
    >>> overlaps((1, 2), (3, 4))
    False
    """
    return first[0] <= second[1] and second[0] <= first[1]


def merge(intervals):
    """Join intervals that overlap, in order of their start.

    >>> merge([(1, 3), (2, 6), (8, 9)])
    [(1, 6), (8, 9)]
    >>> merge([(1, 10), (2, 3)])
    [(1, 10)]
    """
    merged = []
    for start, end in sorted(intervals):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], end)
        else:
            merged.append((start, end))
    return merged


def total_length(intervals):
    """How much of the line the intervals cover together.

    >>> total_length([(0, 2), (1, 4), (10, 11)])
    5
    """
    return sum(end - start for start, end in merge(intervals))
'''

REPAIRS_A = (
    Task(
        name="stats_median",
        kind="repair",
        half="dev",
        request="median([1, 2, 3, 4]) in stats.py gives 2.0, expected 2.5. Please fix it.",
        files={"stats.py": STATS},
        check=Holds(
            "from stats import mean, median, mode",
            (
                "median([1, 2, 3, 4]) == 2.5",
                "median([10, 2]) == 6",
                "median([5, 1, 9, 7, 3, 100]) == 6",
                "median([9]) == 9 and median([7, 1, 3]) == 3",
                "raises(ValueError, median, [])",
                "mean([2, 4, 9]) == 5 and mode([4, 1, 4, 1, 2]) == 1",
            ),
        ),
        changes=True,
        solution={"stats.py": replace_once(STATS, "ordered[middle - 2]", "ordered[middle - 1]")},
    ),
    Task(
        name="add_months",
        kind="repair",
        half="held_out",
        request=(
            "calendar_math.py: add_months(date(2023, 11, 15), 1) == date(2023, 12, 15) should hold, but I get a date "
            "in 2024. Please find the mistake and correct it."
        ),
        files={"calendar_math.py": CALENDAR_MATH},
        check=Holds(
            "from datetime import date\nfrom calendar_math import add_months, age_on, next_weekday",
            (
                "add_months(date(2023, 11, 15), 1) == date(2023, 12, 15)",
                "add_months(date(2023, 12, 15), 1) == date(2024, 1, 15)",
                "add_months(date(2023, 12, 31), 2) == date(2024, 2, 29)",
                "add_months(date(2024, 3, 31), -1) == date(2024, 2, 29)",
                "add_months(date(2024, 1, 10), -1) == date(2023, 12, 10)",
                "add_months(date(2024, 12, 1), 0) == date(2024, 12, 1)",
                "add_months(date(2024, 6, 5), 30) == date(2026, 12, 5)",
                "next_weekday(date(2024, 5, 1), 0) == date(2024, 5, 6)",
                "age_on(date(2000, 6, 15), date(2024, 6, 14)) == 23",
            ),
        ),
        changes=True,
        solution={
            "calendar_math.py": replace_once(CALENDAR_MATH, "(start.month + months)", "(start.month - 1 + months)")
        },
    ),
    Task(
        name="normalise_path",
        kind="repair",
        half="dev",
        request='normalise("../lib") == "../lib" is not true at the moment, the result is just "lib". See paths.py.',
        files={"paths.py": PATHS},
        check=Holds(
            "from paths import extension, join, normalise",
            (
                "normalise('../lib') == '../lib'",
                "normalise('../../a/../b') == '../../b' and normalise('a/../../b') == '../b'",
                "normalise('/../etc') == '/etc' and normalise('/..') == '/'",
                "normalise('a//b/./c/') == 'a/b/c' and normalise('') == '.' and normalise('/') == '/'",
                "join('src/app', '../main.py') == 'src/main.py' and join('a', '/b') == '/b'",
                "extension('a.b/archive.tar.gz') == 'gz' and extension('.profile') == ''",
            ),
        ),
        changes=True,
        solution={"paths.py": replace_once(PATHS, "elif absolute:", "elif not absolute:")},
    ),
    Task(
        name="interval_merge",
        kind="repair",
        half="held_out",
        request=(
            "merge() in intervals.py has a bug: when a long interval contains a shorter one, the end of the long one "
            "is lost. Can you repair that?"
        ),
        files={"intervals.py": INTERVALS},
        check=Holds(
            "from intervals import merge, overlaps, total_length",
            (
                "merge([(1, 10), (2, 3)]) == [(1, 10)]",
                "merge([(0, 9), (1, 2), (8, 12), (20, 21)]) == [(0, 12), (20, 21)]",
                "merge([(8, 9), (1, 3), (2, 6)]) == [(1, 6), (8, 9)]",
                "merge([(1, 2), (2, 3)]) == [(1, 3)] and merge([]) == []",
                "total_length([(0, 10), (2, 4)]) == 10",
                "overlaps((1, 3), (3, 5)) and not overlaps((1, 2), (3, 4))",
            ),
        ),
        changes=True,
        solution={"intervals.py": replace_once(INTERVALS, "[-1][0], end)", "[-1][0], max(merged[-1][1], end))")},
    ),
)
