"""demoreel: record, open, cut, convert, check and play robot demonstrations.

``demoreel.open(path)`` reads LeRobot datasets of any version in place. Importing this package
loads nothing heavy: numpy, Arrow, PyAV and torch come when they are used.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable, Mapping
    from typing import Literal

    from demoreel.check.report import Report
    from demoreel.check.run import check
    from demoreel.convert.report import ConvertReport
    from demoreel.convert.run import convert, convert_to_lance, convert_to_lance_video
    from demoreel.edit.cut import Cut
    from demoreel.edit.diff.difference import Difference
    from demoreel.edit.in_place.versions import Version, checkout, tag, versions
    from demoreel.hub.plan import PushReport
    from demoreel.hub.pull import Pulled, pull
    from demoreel.hub.push import push
    from demoreel.media.settings import VideoSettings
    from demoreel.read.batch import Windows
    from demoreel.read.dataset import Dataset
    from demoreel.record import Recorder, create, resume
    from demoreel.record.finish import Finished, finish
    from demoreel.repair.report import Repaired
    from demoreel.repair.run import repair
    from demoreel.run.clean import Cleaned, clean
    from demoreel.stats.recompute import Recomputed
    from demoreel.stats.recompute import recompute as recompute_stats
    from demoreel.storage.external import AllowExternal

__all__ = [
    "Cleaned",
    "ConvertReport",
    "Dataset",
    "Difference",
    "Finished",
    "Pulled",
    "PushReport",
    "Recomputed",
    "Recorder",
    "Repaired",
    "Report",
    "Version",
    "VideoSettings",
    "__version__",
    "check",
    "checkout",
    "clean",
    "convert",
    "convert_to_lance",
    "convert_to_lance_video",
    "create",
    "cut",
    "diff",
    "errors",
    "finish",
    "lance",
    "open",
    "pull",
    "push",
    "recompute_stats",
    "record",
    "repair",
    "resume",
    "tag",
    "versions",
]

logging.getLogger(__name__).addHandler(logging.NullHandler())


def open(
    path: str | os.PathLike[str],
    *,
    episodes: Iterable[int] | None = None,
    cameras: Iterable[str] | None = None,
    image_size: tuple[int, int] | None = None,
    windows: Windows | None = None,
    tolerance_s: float = 1e-4,
    depth_unit: Literal["mm", "m"] = "mm",
    decode_threads: int | None = None,
    version: int | None = None,
    tag: str | None = None,
    filter: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
    allow_external: AllowExternal | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
    cache_size: int | str | None = None,
) -> Dataset:
    """Open a LeRobot dataset (v2.0, v2.1, v3.0 or one of the Lance layouts) in place.

    Saved episodes that wait for their encoders are part of it;
    ``demoreel.finish`` encodes and commits them.

    Cost: reads the metadata; no table and no video is opened, nothing is written or fetched. With
    ``filter``, also the columns that it names. Of a remote dataset the metadata are
    copied, once for each state of it, into the user's cache (``DEMOREEL_CACHE``, else
    ``~/.cache/demoreel/far``): at most 20 requests. Samples then fetch the bytes that they need.

    Args:
        path: The dataset's folder, or its URI: ``s3://bucket/path``, ``gs://``, ``az://``,
            ``hf://datasets/owner/name[@revision]``, ``hf://buckets/owner/name``.
        episodes: Read only these, by ``episode_index``; samples keep the dataset's order.
        cameras: Decode only these; the others are left out of the samples.
        image_size: (height, width) to scale frames to, while their colours are converted.
        windows: For a feature, which neighbours of a frame belong to its sample: integers are
            frames, floats are seconds. Windows clamp at the episode's edges, and a ``KEY_is_pad``
            mask says where.
        tolerance_s: How far window seconds may be from a frame.
        depth_unit: Unit of depth images.
        decode_threads: Threads that decode; by default every core in a main process and one in
            a DataLoader worker.
        version: Of a Lance dataset, the version of its table of rows to read; the newest if None.
        tag: Of a Lance dataset, the version with this name.
        filter: Read only the episodes that have at least one frame where this SQL condition holds,
            e.g. ``"task_index = 2 and timestamp < 1.0"``; among ``episodes``, if those are given.
            The whole text is one condition, with one meaning in all layouts: docs/querying.md.
            Other layouts than Lance need the extra ``sql`` for it.
        storage_options: Options of the object store, beyond those of the environment: credentials,
            ``aws_region``, ``aws_endpoint``. They are never shown.
        allow_external: A folder or URI, or several, that the dataset's Lance tables may point into
            besides the dataset's own folder or store. Other files are not read: an untrusted
            table may point at any file. Holds for this dataset while this process lives, and for
            processes that it starts.
        cache_dir: Of a remote dataset, keep the bytes that were fetched in this folder,
            which all processes share; by default only memory keeps some.
        cache_size: How much to keep there, e.g. ``"50GB"``; alone, the folder is the user's cache.

    Raises:
        DatasetNotFoundError: There is no dataset at ``path``.
        StoreError: The store or the Hub does not answer as it should.
        MetadataError: Its metadata are broken, unsafe, of an unknown version, or name no episode.
            As UnsafePathError: a table names a file outside the dataset; raised when it is read.
        UnfinishedError: A writer died in the middle of a commit: ``demoreel.finish`` completes it.
        UnknownKeyError: A camera or a window's key does not exist.
        OutOfRangeError: An episode does not exist.
        ArgumentError: Another argument makes no sense, or no frame meets the filter.
        MissingExtraError: The filter needs DuckDB, which is not installed.
    """
    from demoreel.read.dataset import Dataset

    return Dataset(
        path,
        episodes=episodes,
        cameras=cameras,
        image_size=image_size,
        windows=windows,
        tolerance_s=tolerance_s,
        depth_unit=depth_unit,
        decode_threads=decode_threads,
        version=version,
        tag=tag,
        filter=filter,
        storage_options=storage_options,
        allow_external=allow_external,
        cache_dir=cache_dir,
        cache_size=cache_size,
    )


def cut(
    dataset: str | os.PathLike[str] | Dataset,
    *,
    storage_options: Mapping[str, Any] | None = None,
    allow_external: AllowExternal | None = None,
) -> Cut:
    """Begin a cut with all episodes of a dataset: delete, trim, split, merge, then ``render``.

    Cost: reads the metadata. Nothing is written before ``render``, and the source never changes.

    Args:
        dataset: A dataset's folder or URI, or one that is open: of one with chosen episodes, those.
        storage_options: Of a URI: as for ``open``.
        allow_external: Outside of the dataset, what its Lance tables may name: as for ``open``.

    Raises:
        DatasetNotFoundError: There is no dataset.
        MetadataError: Its metadata are broken.
        StoreError: The store does not answer.
    """
    from demoreel.edit.cut import cut as begin

    return begin(dataset, storage_options=storage_options, allow_external=allow_external)


def diff(
    a: str | os.PathLike[str] | Dataset,
    b: str | os.PathLike[str] | Dataset,
    *,
    match: Literal["position", "content"] = "position",
    pixels: Literal["none", "sample", "all"] = "sample",
    tolerance: float = 0.0,
    pixel_tolerance: float = 0.0,
    storage_options: Mapping[str, Any] | None = None,
    allow_external: AllowExternal | None = None,
    report: Callable[[float], None] | None = None,
) -> Difference:
    """Compare two datasets of any layouts: metadata, rows, statistics, frames.

    The layout on disk and the encoding of frames are not compared, except for their effect on
    pixels. Of statistics, the last digits do not count.

    Cost: reads all rows and all packets of video of both. Only frames whose bytes differ are
    decoded. Memory: 65,536 rows and a few frames. What a URI names is fetched first, into a
    folder beside the user's cache (``DEMOREEL_STAGING``) that is removed again.

    Args:
        a: A dataset's folder or URI, or one that is open: of one with chosen episodes, those.
        b: The other.
        match: Which episodes are compared: those at the same ``position``, or those with the same
            rows (``content``), wherever they stand; what is left then is compared by position.
        pixels: Where encoded bytes differ: decode a few frames of each episode (``sample``), or
            ``all``; with ``none``, frames are not compared.
        tolerance: How much numbers may differ.
        pixel_tolerance: How much pixels may differ, in levels of 255 (of depth, in millimetres).
        storage_options: Of URIs: as for ``open``.
        allow_external: Outside of the datasets, what their Lance tables may name: as for ``open``.
        report: Called with the share that is done.

    Raises:
        DatasetNotFoundError: One of them is not there.
        MetadataError: Its metadata are broken.
        TableError: A table is missing or damaged.
        VideoError: A video is.
        ArgumentError: An argument makes no sense.
    """
    from demoreel.edit.diff.run import diff as compare

    return compare(
        a,
        b,
        match=match,
        pixels=pixels,
        tolerance=tolerance,
        pixel_tolerance=pixel_tolerance,
        storage_options=storage_options,
        allow_external=allow_external,
        report=report,
    )


_ROOMS = ("check", "convert", "errors", "lance", "record", "repair")
"""Modules that are public as they are; those that are named like a function can be called."""

_PLACES = {
    "Cleaned": "run.clean",
    "ConvertReport": "convert.report",
    "Dataset": "read.dataset",
    "Difference": "edit.diff.difference",
    "Finished": "record.finish",
    "Pulled": "hub.pull",
    "PushReport": "hub.plan",
    "Recomputed": "stats.recompute",
    "Recorder": "record",
    "Repaired": "repair.report",
    "Report": "check.report",
    "Version": "edit.in_place.versions",
    "VideoSettings": "media.settings",
    "checkout": "edit.in_place.versions",
    "clean": "run.clean",
    "convert_to_lance": "convert.run",
    "convert_to_lance_video": "convert.run",
    "create": "record",
    "finish": "record.finish",
    "pull": "hub.pull",
    "push": "hub.push",
    "recompute_stats": "stats.recompute:recompute",
    "resume": "record",
    "tag": "edit.in_place.versions",
    "versions": "edit.in_place.versions",
}
"""Where the public names are that are loaded when they are first asked for."""


def __getattr__(name: str) -> Any:
    if name in _ROOMS or name in _PLACES:
        import importlib

        if name in _ROOMS:
            return importlib.import_module(f"demoreel.{name}")
        module, _, called = _PLACES[name].partition(":")
        return getattr(importlib.import_module(f"demoreel.{module}"), called or name)
    if name == "__version__":
        from importlib.metadata import PackageNotFoundError, version

        try:
            return version("demoreel")
        except PackageNotFoundError:  # on the path, but not installed
            return "unknown"
    raise AttributeError(f"module 'demoreel' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
