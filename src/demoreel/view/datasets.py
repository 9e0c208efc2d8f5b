"""The datasets that a viewer shows: those that were named, and those inside named folders."""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from demoreel.errors import DatasetNotFoundError
from demoreel.layouts.base import Reader
from demoreel.layouts.detect import layout_of
from demoreel.layouts.meta import read_info
from demoreel.media.video import VideoClip
from demoreel.model import Feature
from demoreel.read.dataset import Dataset
from demoreel.read.follow import has_changed
from demoreel.storage.store import is_uri
from demoreel.view.packets import codec_string

_DEEPEST = 4  # a dataset below a named folder: ORGANISATION/NAME, and a little more
_MOST_LISTED = 2000
_FIRST_PACKET = 1 << 20


class ShownDataset:
    """A dataset of the viewer, opened when it is first asked for, and anew when it has grown."""

    def __init__(self, name: str, place: str, options: Mapping[str, Any]) -> None:
        self.name = name
        self.place = place
        self.id = hashlib.sha256(place.encode("utf-8", "surrogateescape")).hexdigest()[:12]
        self._options = options
        self._lock = threading.Lock()
        self._dataset: Dataset | None = None
        self._reader: Reader | None = None
        # Pages keep answers by it: another server of this port must not go on with its numbers.
        self.revision = time.time_ns() // 1_000_000

    @property
    def beside(self) -> str:
        """The folder for what is made of it: its own, or the current one where it is remote."""
        return os.getcwd() if is_uri(self.place) else os.path.dirname(self.place)

    def open(self) -> Dataset:
        """Return the dataset as it is now; episodes that a recorder saved meanwhile are in it.

        Cost: some stats; opening it where it is new or has changed.
        """
        with self._lock:
            known = self._dataset
            # A read that followed a recorder has a newer reader, and the episodes of before.
            if known is None or known.reader is not self._reader or has_changed(known.reader):
                known = self._dataset = Dataset(self.place, **self._options)
                self._reader = known.reader
                self.revision += 1
            return known

    def summary(self) -> dict[str, Any]:
        """Return what a list of datasets says of it, from ``info.json`` alone where it is a folder.

        A dataset that cannot be read is listed with the reason.
        """
        facts: dict[str, Any] = {"id": self.id, "name": self.name, "place": self.place}
        path = Path(self.place, "meta", "info.json")
        try:
            if path.is_file():
                info, changed = read_info(path), path.stat().st_mtime
                layout = layout_of(Path(self.place), info)
            else:
                dataset = self.open()
                info, changed, layout = dataset.info, None, dataset.layout
        except Exception as error:
            return facts | {"error": _first_line(error)}
        return facts | {
            "layout": layout,
            "robot": str(info.robot_type or ""),
            "episodes": info.total_episodes,
            "frames": info.total_frames,
            "fps": info.fps,
            "cameras": [key.removeprefix("observation.images.") for key in info.cameras],
            "changed": changed,
        }


class Shown:
    """All datasets of the viewer, by their id: a request can name no other folder."""

    def __init__(self, places: Sequence[str], options: Mapping[str, Any]) -> None:
        self._places = places
        self._options = options
        self._known: dict[str, ShownDataset] = {}
        self.list()
        if not self._known:
            raise DatasetNotFoundError(
                "There is no dataset here.",
                hint="give a dataset's folder (the one with meta/ in it), or a folder of datasets",
                path=places[0],
            )

    def list(self) -> list[ShownDataset]:
        """Return the datasets that are there now: one that was recorded since is among them."""
        found = []
        for place in self._places:
            for name, path in _datasets_in(place):
                shown = ShownDataset(name, path, self._options)
                found.append(self._known.setdefault(shown.id, shown))
        return found

    @property
    def is_pair(self) -> bool:
        """Whether two datasets were named, to be shown side by side."""
        places = {each.place for each in self._known.values()}
        named = {place if is_uri(place) else os.path.abspath(place) for place in self._places}
        return len(named) == 2 and named == places

    def get(self, id: str) -> ShownDataset:
        """Return a dataset by its id."""
        if id not in self._known:
            raise DatasetNotFoundError(
                "No such dataset is shown here.", hint="go to the first page"
            )
        return self._known[id]


def _datasets_in(place: str) -> Iterator[tuple[str, str]]:
    """Yield name and place of the dataset at a place, or of those below it."""
    if is_uri(place):
        yield place.rstrip("/").rpartition("/")[2], place
        return
    root = os.path.abspath(place)
    if os.path.isfile(os.path.join(root, "meta", "info.json")):
        yield os.path.basename(root), root
        return
    found = 0
    for folder, folders, _ in os.walk(root):
        depth = os.path.relpath(folder, root).count(os.sep) + 1 if folder != root else 0
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        if depth and os.path.isfile(os.path.join(folder, "meta", "info.json")):
            folders.clear()
            found += 1
            yield os.path.relpath(folder, root), folder
        if depth >= _DEEPEST:
            folders.clear()
        if found >= _MOST_LISTED:
            return


def describe(shown: ShownDataset) -> dict[str, Any]:
    """Return what the pages of a dataset need to know of it."""
    dataset = shown.open()
    features = {
        feature.key: {
            "dtype": feature.dtype,
            "shape": list(feature.shape),
            "names": names_of(feature),
            "kind": "camera" if feature.is_camera else "number" if feature.is_numeric else "text",
            "depth": feature.is_depth,
            "size": list(feature.image_shape[:2]) if feature.is_camera else None,
        }
        for feature in dataset.features.values()
    }
    return {
        "id": shown.id,
        "name": shown.name,
        "place": shown.place,
        "revision": shown.revision,
        "layout": dataset.layout,
        "robot": dataset.info.robot_type,
        "fps": dataset.fps,
        "episodes": len(dataset.episodes),
        "frames": len(dataset),
        "tasks": len(dataset.tasks),
        "features": features,
    }


def camera_facts(dataset: Dataset, position: int, camera: str) -> dict[str, Any]:
    """Return how a page gets an episode's images of a camera.

    Returns:
        ``way`` is ``packets`` where a browser may decode them, else ``frames``, and ``why``.
    """
    reader, feature = dataset.reader, dataset.features[camera]
    if feature.is_depth:
        return {"way": "depth", "why": "depth is decoded by the server"}
    if reader.in_tables(camera):
        return {"way": "frames", "why": "images are sent as they are shown"}
    clip = reader.clip(position, camera)
    index = clip.video.index
    if index.raw is not None and index.packet_of[clip.first] >= index.raw_from:
        return {"way": "frames", "why": "this episode waits for its encoder"}
    first = clip.video.file.read(int(index.offset[0]), min(int(index.size[0]), _FIRST_PACKET))
    told = codec_string(index.codec, first)
    if told is None:
        return {"way": "frames", "why": f"browsers do not decode {index.codec.name} in this form"}
    name, header = told
    return {
        "way": "packets",
        "codec": name,
        "description": header.hex() if header else None,
        "width": index.codec.width,
        "height": index.codec.height,
        "first": clip.first,
        "step": clip.step,
        "gop": _longest_gop(clip, int(reader.episodes.length[position])),
    }


def _longest_gop(clip: VideoClip, length: int) -> int:
    """Return the most frames that have to be decoded for one of the episode's."""
    index = clip.video.index
    packets = index.packet_of[clip.first : clip.first + clip.step * (length - 1) + 1]
    return int((packets - index.start_of[packets]).max(initial=0)) + 1


def names_of(feature: Feature) -> list[str] | None:
    """Return a name for each dimension of a feature, as far as the dataset says one."""
    names: object = feature.names
    while isinstance(names, dict):
        names = [name for part in names.values() for name in _flat(part)] if names else None
    flat = _flat(names)
    size = 1
    for length in feature.shape:
        size *= int(length)
    return flat if len(flat) == size else None


def _flat(names: object) -> list[str]:
    if isinstance(names, list | tuple):
        return [text for name in names for text in _flat(name)]
    return [] if names is None else [str(names)]


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:300]
