import os
from pathlib import Path

from mendgraph.nodes.workspace.sandboxes.private_folder import remove_tree
from tests.extent import slow


@slow
def test_deep_folder_is_removed_without_following_links(tmp_path: Path) -> None:
    folder, outside = tmp_path / "folder", tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").write_text("kept")
    folder.mkdir()
    (folder / "link").symlink_to(outside)
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    for _ in range(1_100):  # deeper than Python's own removal goes
        os.mkdir("d", dir_fd=handle)
        below = os.open("d", os.O_RDONLY | os.O_DIRECTORY, dir_fd=handle)
        os.close(handle)
        handle = below
    os.chmod(handle, 0)
    os.close(handle)

    remove_tree(str(folder))

    assert os.listdir(tmp_path) == ["outside"]
    assert os.listdir(outside) == ["kept"]
