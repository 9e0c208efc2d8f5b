"""What a repair does not do unasked: leave out episodes and cameras, or do without their files."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from demoreel.check.look import Look
from demoreel.errors import RepairError, count
from demoreel.repair.report import Lost, examples, reasons
from demoreel.repair.videos import named_videos
from demoreel.storage.local import is_pointer_file

_FETCH = "fetch what is missing: demoreel pull OWNER/NAME FOLDER, or copy it from where it is"
_SHOWN = 3


def refuse_pointers(root: Path, files: Mapping[str, int]) -> None:
    """Refuse a dataset of which Git has fetched pointers instead of files."""
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
    """
    if look.is_lance or look.info is None or look.episodes is None:
        return []
    cameras = look.video_cameras
    named = [name for name, _ in look.table_files()]
    for camera in (key for key in cameras if key not in left_out):
        named += [name for name, _ in look.video_files(camera)]
    stored = [n for n, size in look.files.items() if size >= 0 and not n.startswith("meta/")]
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


def refuse_absent_cameras(
    root: Path,
    cameras: Mapping[str, str],
    absent: Sequence[str],
    damaged: Sequence[tuple[str, str]],
) -> None:
    """Refuse to repair a dataset without frames of cameras that it declares.

    Args:
        root: The dataset.
        cameras: The cameras of which no frame can be read, or not of all tables, and why.
        absent: Files that are not there.
        damaged: Videos that do not open, and why.
    """
    if not cameras:
        return
    named = ",".join(repr(name) for name in cameras)
    option = f"drop_cameras=[{named}] ({' '.join(f'--drop-camera {name}' for name in cameras)})"
    own = [f"{name}: {why}" for name, why in damaged if any(c in name for c in cameras)]
    partly = {camera: why for camera, why in cameras.items() if why}
    if partly:
        raise RepairError(
            f"Not all tables have the images of {' and '.join(partly)}: "
            f"{'; '.join(dict.fromkeys(partly.values()))}.",
            hint=f"restore these tables from a copy, or take them out of the dataset; {option} "
            "leaves the images out",
            dataset=root,
        )
    said = f" {count(len(own), 'video')} cannot be read ({examples(own)})." if own else ""
    next_step = _FETCH if absent else "restore them from a copy"
    raise RepairError(
        f"There are no frames of {' and '.join(cameras)}.{_not_there(absent)}{said}",
        hint=f"{next_step}; {option} leaves "
        f"{'the camera' if len(cameras) == 1 else 'the cameras'} out",
        dataset=root,
    )


def refuse_losses(
    root: Path, lost: Sequence[Lost], episodes: int, absent: Sequence[str]
) -> NoReturn:
    """Refuse to leave episodes out."""
    each = reasons(lost)
    why = "; ".join(each[:_SHOWN]) + ("; ..." if len(each) > _SHOWN else "")
    them = "the episode" if len(lost) == 1 else "the episodes"
    more = "" if len(each) <= _SHOWN else "; dry_run=True (--dry-run) lists them all"
    raise RepairError(
        f"{len(lost)} of {count(episodes, 'episode')} cannot be kept: {why}.{_not_there(absent)}",
        hint=f"{_FETCH if absent else f'restore the files of {them} from a copy'}; "
        f"drop_episodes=True (--drop-episodes) leaves {them} out{more}",
        dataset=root,
    )


def refuse_nothing(root: Path, lost: Sequence[Lost], absent: Sequence[str]) -> NoReturn:
    """Say that no episode can be saved, or that there is none."""
    if not lost and not absent:
        raise RepairError(
            "There is no episode in this folder, neither in its metadata nor in its tables.",
            hint="record one: demoreel record PATH --resume; or restore the files from a copy",
            dataset=root,
        )
    why = f" {'; '.join(reasons(lost)[:_SHOWN])}." if lost else ""
    raise RepairError(
        f"No episode can be saved.{why[:1]}{why[1:2].upper()}{why[2:]}{_not_there(absent)}",
        hint=_FETCH if absent else "restore the files from a copy; demoreel check names them",
        dataset=root,
    )


def _not_there(absent: Sequence[str]) -> str:
    if not absent:
        return ""
    verb = "is" if len(absent) == 1 else "are"
    return f" {count(len(absent), 'file')} {verb} not there ({examples(absent)})."
