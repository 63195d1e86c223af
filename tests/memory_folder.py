"""Temporary folders in memory."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

MEMORY: Final = "/dev/shm"


@contextmanager
def memory_folder() -> Iterator[Path]:
    """Create a temporary folder, in memory if the system has /dev/shm."""
    with tempfile.TemporaryDirectory(dir=MEMORY if os.path.isdir(MEMORY) else None) as folder:
        yield Path(folder).resolve()
