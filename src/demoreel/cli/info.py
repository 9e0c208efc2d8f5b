"""``demoreel info``: what a dataset is."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from demoreel.cli.options import DatasetPath, name_of_place
from demoreel.cli.output import Output, TableColumn, duration, size
from demoreel.errors import TableError, count

if TYPE_CHECKING:
    from demoreel.model import Feature
    from demoreel.read.dataset import Dataset

_TASKS_SHOWN = 12


def info(out: Output, path: DatasetPath) -> None:
    """Show a dataset's tasks, features and cameras.

    Reads the metadata only, and the sizes of files. Cameras are shown as the metadata describes
    them.
    """
    import demoreel

    facts = describe(demoreel.open(path))
    if out.json:
        out.result(facts)
    else:
        _show(out, facts)


def describe(dataset: Dataset) -> dict[str, Any]:
    """Return what is known of a dataset from its metadata and the sizes of its files."""
    meta, frames = dataset.info, len(dataset)
    disk, is_whole = _stored(dataset)
    features = dataset.features.values()
    return {
        "path": dataset.uri or str(dataset.root),
        "layout": dataset.layout,
        "robot_type": meta.robot_type,
        "fps": dataset.fps,
        "episodes": len(dataset.episodes),
        "frames": frames,
        "seconds": frames / dataset.fps,
        "tasks": [{"task_index": index, "task": text} for index, text in dataset.tasks.items()],
        "features": {f.key: _feature(f) for f in features if not f.is_camera},
        "cameras": {f.key: _camera(f) for f in features if f.is_camera},
        "waiting": _waiting(dataset),
        "has_stats": dataset.stats is not None,
        "external": _external(dataset),
        "disk": disk,
        "disk_is_whole": is_whole,
        "absent": _absent(dataset),
    }


def _waiting(dataset: Dataset) -> dict[str, Any] | None:
    """Return what is known of saved episodes that are not committed; None where there are none."""
    from demoreel.layouts.pending import find_waiting

    state = dataset.__getstate__()
    if not dataset.folder.grows or state["version"] is not None or state["tag"] is not None:
        return None
    found = find_waiting(dataset.root, dataset.info)
    if not found:
        return None
    return {
        "episodes": len(found.episodes),
        "frames": found.frames,
        "damaged": [{"folder": str(each.folder), "why": each.why} for each in found.damaged],
    }


def _absent(dataset: Dataset) -> dict[str, int]:
    """Return how many tables and videos are not here, and how many are Git LFS pointers."""
    from demoreel.layouts.pending import PendingReader
    from demoreel.layouts.v2.reader import V2Reader
    from demoreel.layouts.v3.reader import V3Reader

    reader = dataset.reader
    committed = reader.base if isinstance(reader, PendingReader) else reader
    if dataset.folder.waits or not isinstance(committed, V2Reader | V3Reader):
        return {"missing": 0, "not_fetched": 0}
    missing, pointers = committed.absent()
    return {"missing": len(missing), "not_fetched": len(pointers)}


def _absent_text(absent: dict[str, int]) -> str:
    from demoreel.storage.local import FETCH

    parts = []
    if absent["not_fetched"]:
        files = count(absent["not_fetched"], "file")
        parts.append(f"{files} not fetched, Git LFS pointers instead: git lfs pull")
    if absent["missing"]:
        number = absent["missing"]
        files = "1 table or video" if number == 1 else f"{number:,} tables or videos"
        parts.append(f"{files} not there; {FETCH}")
    return "; ".join(parts)


def _feature(feature: Feature) -> dict[str, Any]:
    return {"dtype": feature.dtype, "shape": list(feature.shape), "names": feature.names}


def _camera(feature: Feature) -> dict[str, Any]:
    height, width, channels = feature.image_shape
    return {
        "height": height,
        "width": width,
        "channels": channels,
        "stored_as": feature.dtype,
        "codec": feature.info.get("video.codec"),
        "pix_fmt": feature.info.get("video.pix_fmt"),
        "fps": feature.info.get("video.fps"),
        "is_depth": feature.is_depth,
    }


def _external(dataset: Dataset) -> dict[str, Any]:
    """Return how many files outside itself the dataset names, where they are, and if it may."""
    from demoreel.storage.external import prefixes_of

    found: dict[str, bool] = {}
    if dataset.layout.startswith("lance"):
        from demoreel.layouts.lance.reader import LanceReader
        from demoreel.layouts.pending import PendingReader

        reader = dataset.reader
        committed = reader.base if isinstance(reader, PendingReader) else reader
        if isinstance(committed, LanceReader):  # saved episodes that wait name no files
            with contextlib.suppress(TableError):  # what is broken is for check to say
                found = committed.external()
    refused = [uri for uri, is_refused in found.items() if is_refused]
    return {
        "files": len(found),
        "prefixes": prefixes_of(found),
        "refused": len(refused),
        "refused_prefixes": prefixes_of(refused),
    }


def _external_text(external: dict[str, Any]) -> str:
    places = ", ".join(external["prefixes"])
    text = f"{count(external['files'], 'file')} outside it, in {places}"
    if external["refused"]:
        text += f"; {external['refused']} not read, see --allow-external"
    return text


def _stored(dataset: Dataset) -> tuple[dict[str, dict[str, int]], bool]:
    """Return files and bytes of each folder in the dataset's own, and of all; and if these are all.

    What is remote is listed by a few requests, which may not tell all of very many files.
    """
    files, is_whole = dataset.folder.every_file()
    return _summed(files), is_whole


def _summed(files: Iterable[tuple[str, int]]) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = {}
    total = {"files": 0, "bytes": 0}
    for name, length in files:
        part, slash, _ = name.partition("/")
        # What is beside the folders counts in the total only.
        own = [found.setdefault(part, {"files": 0, "bytes": 0})] if slash else []
        for sums in (*own, total):
            sums["files"] += 1
            sums["bytes"] += length
    return {**dict(sorted(found.items())), "total": total}


def _show(out: Output, facts: dict[str, Any]) -> None:
    out.line(f"{name_of_place(facts['path'])}: LeRobot {facts['layout']}", style="bold")
    lines = {
        "path": facts["path"],
        "robot": facts["robot_type"] or "not named",
        "episodes": f"{facts['episodes']:,}",
        "frames": f"{facts['frames']:,} at {facts['fps']:g} fps: {duration(facts['seconds'])}",
        "stats": "yes" if facts["has_stats"] else "none",
        "on disk": _disk_text(facts["disk"], is_whole=facts["disk_is_whole"]),
    }
    if any(facts["absent"].values()):
        lines["absent"] = _absent_text(facts["absent"])
    if facts["external"]["files"]:
        lines["external"] = _external_text(facts["external"])
    if facts["waiting"]:
        lines["waiting"] = _waiting_text(facts["waiting"], facts["path"])
    for name, text in lines.items():
        out.line(f"  {name:<9} {text}")
    _show_tasks(out, facts["tasks"])
    out.line()
    out.table(
        [TableColumn("feature"), TableColumn("dtype"), TableColumn("shape"), TableColumn("names")],
        [
            (key, f["dtype"], _shape_text(f["shape"]), _names_text(f["names"]))
            for key, f in facts["features"].items()
        ],
    )
    if facts["cameras"]:
        out.line()
        out.table(
            [
                TableColumn("camera"),
                TableColumn("height x width"),
                TableColumn("stored as"),
                TableColumn("fps", True),
            ],
            [
                (key, f"{c['height']} x {c['width']}", _stored_text(c), _fps_text(c["fps"]))
                for key, c in facts["cameras"].items()
            ],
        )


def _waiting_text(waiting: dict[str, Any], path: str) -> str:
    parts = []
    if waiting["episodes"]:
        saved = f"{count(waiting['episodes'], 'episode')}, {count(waiting['frames'], 'frame')}"
        parts.append(f"{saved} of these are saved and not committed")
    if waiting["damaged"]:
        parts.append(f"{count(len(waiting['damaged']), 'saved episode')} cannot be read")
    return f"{'; '.join(parts)}: demoreel finish {path}"


def _show_tasks(out: Output, tasks: list[dict[str, Any]]) -> None:
    out.line()
    rows = [(str(task["task_index"]), task["task"]) for task in tasks]
    shown = rows[:_TASKS_SHOWN] if out.is_terminal else rows
    out.table(
        [TableColumn("task", right=True), TableColumn("what the robot was asked to do")], shown
    )
    if len(shown) < len(rows):
        out.line(f"      and {len(rows) - len(shown):,} more; --json shows all")


def _disk_text(disk: dict[str, dict[str, int]], *, is_whole: bool) -> str:
    parts = [f"{name} {size(sums['bytes'])}" for name, sums in disk.items() if name != "total"]
    total = disk["total"]
    text = f"{size(total['bytes'])} in {count(total['files'], 'file')} ({', '.join(parts)})"
    return text if is_whole else f"at least {text}"


def _shape_text(shape: list[int]) -> str:
    return " x ".join(map(str, shape))


def _names_text(names: object) -> str:
    """Return the names that a recorder gave; some wrap them in a dict, some nest them."""
    if names is None:
        return ""
    if isinstance(names, dict):
        names = next(iter(names.values())) if len(names) == 1 else list(names)
    if isinstance(names, list):
        return ", ".join(_names_text(name) for name in names)
    return str(names)


def _stored_text(camera: dict[str, Any]) -> str:
    details = [camera["codec"], camera["pix_fmt"], "depth" if camera["is_depth"] else None]
    return " ".join([camera["stored_as"], *(str(detail) for detail in details if detail)])


def _fps_text(fps: object) -> str:
    return f"{fps:g}" if isinstance(fps, (int, float)) else ""
