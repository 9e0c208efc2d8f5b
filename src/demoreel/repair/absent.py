"""Files that are not there: pointers of Git LFS in their place, or nothing."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path

from demoreel.check.look import Look
from demoreel.errors import RepairError, count
from demoreel.repair.changes import examples
from demoreel.repair.videos import named_videos
from demoreel.storage.local import is_pointer_file


def refuse_pointers(root: Path, files: Mapping[str, int]) -> None:
    """Refuse a dataset of which Git has fetched pointers instead of files.

    Raises:
        RepairError: Files are pointers of Git LFS.
    """
    pointers = [name for name, size in files.items() if is_pointer_file(root / name, size)]
    tables = (path for path in root.glob("*.lance/**/*") if path.is_file())
    pointers += [str(path.relative_to(root)) for path in tables if is_pointer_file(path)]
    if pointers:
        were = "was" if len(pointers) == 1 else "were"
        raise RepairError(
            f"{count(len(pointers), 'file')} of this dataset {were} not fetched: Git LFS pointers "
            f"lie in their place ({examples(pointers)}).",
            hint="run git lfs pull in the dataset's folder",
            dataset=root,
        )


def absent_files(look: Look, left_out: Collection[str], *, is_v2: bool) -> list[str]:
    """Return the tables and videos that the metadata name and that lie nowhere in the folder.

    A file that lies in another folder is there: it is found by its own name.

    Args:
        look: The dataset.
        left_out: Cameras whose videos are not needed.
        is_v2: Whether files have the names of v2.
    """
    if look.is_lance or look.info is None or look.episodes is None:
        return []
    cameras = look.video_cameras
    named = [name for name, _ in look.table_files()]
    for camera in (key for key in cameras if key not in left_out):
        named += [name for name, _ in look.video_files(camera)]
    stored = [name for name, size in look.files.items() if size >= 0]
    there = set(_own_names(stored, cameras, is_v2).values())
    return [n for n, own in _own_names(named, cameras, is_v2).items() if own not in there]


def _own_names(
    names: Collection[str], cameras: Collection[str], is_v2: bool
) -> dict[str, tuple[object, ...]]:
    """Return the parts of paths that tell which file each is, whatever folder it lies in."""
    found: dict[str, tuple[object, ...]] = {}
    videos = named_videos(names, cameras, is_v2=is_v2)
    for name in names:
        if name in videos:
            camera, place = videos[name]
            found[name] = (camera, *place[1 if is_v2 else 0 :])
        else:
            ending = Path(name).parts
            found[name] = ending[-1:] if is_v2 else ending[-2:]
    return found
