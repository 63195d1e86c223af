"""A disk that need not be waited for."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

MEMORY: Final = "/dev/shm"


@contextmanager
def memory_folder() -> Iterator[Path]:
    """A folder on a disk that need not be waited for, where the system has one."""
    with tempfile.TemporaryDirectory(dir=MEMORY if os.path.isdir(MEMORY) else None) as folder:
        yield Path(folder).resolve()
