"""Results in the Lance layouts: tasks write fragments, and the end makes tables of them.

Fragments are data files that no reader sees before a table names them, so tasks may run anywhere,
twice, or in vain. Videos go straight from their sources' packets into the table of videos.
"""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from demoreel.edit.compare import compare_copy
from demoreel.edit.plan import Plan
from demoreel.edit.table_work import TableJob, numbered_pieces, verbatim_rows, write_facts
from demoreel.edit.target_info import Form
from demoreel.edit.video_work import (
    VideoJob,
    heard_in,
    packets_of,
    refuse_other_length,
    whole_video,
)
from demoreel.errors import ArgumentError
from demoreel.layouts.lance import write as lance_write
from demoreel.layouts.lance.schemas import (
    BYTES_COLUMN,
    FiledVideo,
    LanceSchema,
    named_after,
    rows_batch,
    schema_of,
)
from demoreel.layouts.lance.tables import LanceTable
from demoreel.media.mp4_write import SplicedVideo
from demoreel.media.video import index_video
from demoreel.model import Info
from demoreel.stats.columns import Facts
from demoreel.storage.local import LocalFile


def tables_for(form: Form, name: str, info: Info) -> LanceSchema | None:
    """Return the tables of a result; None where it does not lie in Lance.

    Args:
        form: How it is to lie on disk.
        name: The name of its folder, which tables are named after.
        info: What it will be.
    """
    if not form.layout.startswith("lance"):
        return None
    return schema_of(form.layout, form.table or named_after(name), info)


def write_lance_rows(job: TableJob, tables: LanceSchema, info: Info) -> dict[str, Any]:
    """Write rows as fragments, and beside them what the commit must know of their episodes.

    Memory: the numbers of 65,536 rows or, where they are many, of an episode; 32 MB of images.
    """
    folder = Path(job.folder)
    facts = Facts(job.features, list(job.tasks))
    schema = tables.rows(info, job.images_as)
    rows = verbatim_rows(job, by_episode=False) if job.verbatim else numbered_pieces(job, facts)
    pieces = itertools.chain.from_iterable(rows)
    # Closed at once if something fails: threads that encode images wait to be told.
    with closing(rows_batch(schema, columns) for columns in pieces) as batches:
        fragments = lance_write.write_rows(folder / "dataset" / tables.frames, schema, batches)
    files = {name: os.path.getsize(folder / name) for name in write_facts(job, facts)}
    return {"files": files | _files(folder, tables.frames, fragments), "fragments": fragments}


def write_lance_videos(job: VideoJob, tables: LanceSchema) -> dict[str, Any]:
    """Write videos into a fragment of the table of videos.

    Cost: a copy of their bytes; what is encoded takes the time of its codec.
    """
    assert tables.videos is not None
    folder = Path(job.folder)
    table = folder / "dataset" / tables.videos
    if all(video.whole == "linked" for _, video in job.videos):
        fragments = _link(job, tables, table)
        return {"files": _files(folder, tables.videos, fragments), "fragments": fragments}
    check = compare_copy if job.compare else None
    blobs = lance_write.BlobPart(table, BYTES_COLUMN, check=check)
    try:
        filed = []
        for name, video in job.videos:
            if video.whole is not None:
                whole = whole_video(job, video)
                blobs.add(whole.file)
                filed.append(FiledVideo(video.camera, video.chunk, video.file, whole))
                continue
            with packets_of(video, job.sources, job.keys, folder) as (runs, description):
                audio = heard_in(video, job)
                mp4 = SplicedVideo(runs, description=description, fps=video.fps, audio=audio)
                refuse_other_length(video, mp4.frames)
                blobs.add(mp4)
                indexed = index_video(mp4, name)
                filed.append(FiledVideo(video.camera, video.chunk, video.file, indexed))
        fragments = blobs.finish(tables.video_rows(filed))
    except BaseException:
        blobs.abandon()
        raise
    return {"files": _files(folder, tables.videos, fragments), "fragments": fragments}


def _link(job: VideoJob, tables: LanceSchema, table: Path) -> list[str]:
    """Write rows that point at videos where they are."""
    filed = [
        FiledVideo(video.camera, video.chunk, video.file, whole_video(job, video))
        for _, video in job.videos
    ]
    uris = [_linkable(entry).as_uri() for entry in filed]
    return lance_write.write_links(table, BYTES_COLUMN, tables.video_rows(filed), uris)


def _linkable(entry: FiledVideo) -> Path:
    file = entry.video.file
    path = Path(file.path).resolve() if isinstance(file, LocalFile) else None
    if path is None or any(part.endswith(".lance") for part in path.parts):
        raise ArgumentError(
            "A video lies inside a Lance table, and cannot be pointed at from another.",
            hint="leave link out, or link the dataset that this one was made from",
            camera=entry.camera,
        )
    return path


def linked_folders(plan: Plan, table: Path) -> list[str]:
    """Return the folders of the videos that a table of videos points at."""
    root = plan.readers[0].root.resolve()
    found = LanceTable(str(table)).named_outside()
    files = (Path(unquote(urlsplit(uri).path)) for uri in found)
    inside = (root if file.is_relative_to(root) else file.parent for file in files)
    return sorted({str(place) for place in inside})


def _files(folder: Path, table: str, fragments: Sequence[str]) -> dict[str, int]:
    """Return the files of fragments, with their blobs, and their sizes."""
    names = [file["path"] for text in fragments for file in json.loads(text)["files"]]
    data = folder / "dataset" / table / "data"
    found = [data / name for name in names]
    for name in names:
        found += sorted((data / name.removesuffix(".lance")).glob("*.blob"))
    return {path.relative_to(folder).as_posix(): path.stat().st_size for path in found}
