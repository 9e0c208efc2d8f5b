"""What a dataset's own images and numbers say, and whether a folder is as it was.

Every frame of a base carries its episode and frame in its images (``stamp``) and in its numbers
(see ``factory``). Damage may change pixels and numbers, and no check sum covers them: an image
that cannot be read, or a number here and there, says nothing. But an image that reads as *another*
frame than the one asked for was mixed up, and so was a row whose numbers all agree on another row.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from demoreel.testing.stamp import Stamp, read_stamp
from support.fuzz.bases import GROUP, LENGTHS

_STARTS = tuple(sum(LENGTHS[:episode]) for episode in range(len(LENGTHS)))


def mixed_up(
    item: dict[str, Any],
    cameras: tuple[str, ...],
    asked: Stamp | None,
    *,
    is_blurred: bool = False,
) -> str | None:
    """Say how a frame is another than the one asked for; None if nothing shows that.

    Args:
        item: The frame as it was read.
        cameras: The keys of its images.
        asked: What was asked for; None where the numbers of the frame itself are all there is to
            go by, as a repaired dataset numbers its episodes anew.
        is_blurred: Whether packets of video were damaged. An image that lost what changed since
            the one before looks like that one, and no check sum tells.
    """
    row = row_of(item)
    if asked is not None and row is not None and row != asked:
        return f"the row of episode {row.episode}, frame {row.frame} stands for {asked}"
    wanted = asked or row
    for camera in cameras:
        shown = image_of(item.get(camera))
        if shown is None or wanted is None or shown == wanted:
            continue
        same_group = shown.episode == wanted.episode and abs(shown.frame - wanted.frame) < GROUP
        if not (is_blurred and same_group):
            return f"{camera} shows {shown}, not {wanted}"
    return None


def row_of(item: dict[str, Any]) -> Stamp | None:
    """Return the frame that a row's numbers agree on; None if they do not, or are none of ours."""
    state, action = (_numbers(item.get(key)) for key in ("observation.state", "action"))
    if state is None or action is None or not np.array_equal(state, -action):
        return None
    episode, frame, index = state.tolist()
    if not (0 <= episode < len(LENGTHS) and 0 <= frame < LENGTHS[int(episode)]):
        return None
    if index != _STARTS[int(episode)] + frame or episode % 1 or frame % 1:
        return None
    return Stamp(int(episode), int(frame))


def image_of(image: Any) -> Stamp | None:
    """Return the frame that an image shows; None if it cannot be read."""
    try:
        shown = read_stamp(image)
    except (ValueError, TypeError):
        return None
    known = shown.episode < len(LENGTHS) and shown.frame < LENGTHS[shown.episode]
    return shown if known else None


def is_blurred(before: Path, after: Path) -> bool:
    """Whether packets of video differ between two folders, and not only tables of packets.

    Args:
        before: The undamaged dataset.
        after: The damaged one.
    """
    return any(
        _payload(path) != _payload(after / path.relative_to(before))
        for path in before.rglob("*")
        if path.suffix in (".mp4", ".blob", ".lance") and path.is_file()
    )


def _payload(path: Path) -> bytes | None:
    """Return a file's bytes up to a video's table of packets, which stands last; or all of them."""
    if path.is_symlink() or not path.is_file():
        return None
    data = path.read_bytes()
    return data[: data.rfind(b"moov")] if b"moov" in data else data


def _numbers(value: Any) -> np.ndarray | None:
    if not isinstance(value, np.ndarray) or value.ndim != 1 or len(value) < 3:
        return None
    if value.dtype.kind not in "fiu":
        return None
    first = value[:3].astype(np.float64)
    return first if all(math.isfinite(number) for number in first) else None


def snapshot(folder: Path, *, leave_out: frozenset[str] = frozenset()) -> dict[str, str]:
    """Return every entry below a folder with what it is: a digest, where a link leads, a kind.

    Args:
        folder: The folder; links are not followed.
        leave_out: Names directly in it that do not count.
    """
    return dict(_entries(folder, "", leave_out))


def _entries(folder: Path, inside: str, leave_out: frozenset[str]) -> Iterator[tuple[str, str]]:
    with os.scandir(folder / inside) as entries:
        for entry in entries:
            name = f"{inside}/{entry.name}" if inside else entry.name
            if not inside and entry.name in leave_out:
                continue
            if entry.is_symlink():
                yield name, f"link to {os.readlink(entry.path)}"
            elif entry.is_dir():
                yield name, "folder"
                yield from _entries(folder, name, leave_out)
            elif entry.is_file():
                yield name, hashlib.sha256(Path(entry.path).read_bytes()).hexdigest()
            else:
                yield name, "special"


def changed(before: dict[str, str], after: dict[str, str]) -> list[str]:
    """Return the names of entries that came, went or changed."""
    names = before.keys() | after.keys()
    return sorted(name for name in names if before.get(name) != after.get(name))
