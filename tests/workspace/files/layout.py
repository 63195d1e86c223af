"""A workspace with links of each kind and a folder outside, and helpers for expected values."""

import hashlib
from pathlib import Path

from mendgraph.nodes.records import ToolError, ToolErrorCode
from mendgraph.nodes.workspace.files.workspace import FileContent

DENIAL = ToolError(code=ToolErrorCode.PERMISSION_DENIED, message="a rule says no")
SECRET = b"secret"


def build(base: Path) -> Path:
    """Create the workspace `root` in `base`, with a folder `outside` beside it; `no_env` denies `.env` and `.git`."""
    outside, root = base / "outside", base / "root"
    outside.mkdir()
    (outside / "secret.txt").write_bytes(SECRET)
    (root / "src").mkdir(parents=True)
    (root / ".git").mkdir()
    (root / ".git" / "config").write_bytes(SECRET)
    (root / ".env").write_bytes(SECRET)
    (root / "a.py").write_bytes(b"a = 1\r\n")
    (root / "src" / "b.py").write_bytes(b"b = 2\n")
    (root / "link.py").symlink_to("src/b.py")
    (root / "innocent.txt").symlink_to(".env")
    (root / "out.txt").symlink_to(outside / "secret.txt")
    (root / "out").symlink_to(outside)
    return root


def allow(_path: str, _for_write: bool) -> ToolError | None:
    return None


def no_env(path: str, _for_write: bool) -> ToolError | None:
    return DENIAL if any(part in {".env", ".git"} for part in path.split("/")) else None


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def content(path: str, data: bytes) -> FileContent:
    return FileContent(path, data, sha(data))


def code_of(value: object) -> ToolErrorCode:
    assert isinstance(value, ToolError)
    return value.code


def tree_of(root: Path) -> dict[str, bytes]:
    """The bytes of each regular file."""
    return {str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}
