"""Cuts of remote datasets, and cuts that are to lie there.

Until it is rendered, a cut needs metadata only, which are read where they lie. Rendering copies
packets and rows of files: those that clips lie in are fetched first. What is to are remote is
rendered here, and sent when it is whole.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from demoreel.edit.clips import CutList
from demoreel.edit.render import Rendered, Report, Shard, render
from demoreel.edit.sources import open_source, remote_folder
from demoreel.edit.target_info import Form
from demoreel.errors import ArgumentError
from demoreel.layouts.base import episode_files
from demoreel.run.anywhere import made_and_sent
from demoreel.storage.remote.fetch import local_copy, part_of
from demoreel.storage.remote.send import refuse_remote_overlap
from demoreel.storage.store import is_uri

_A_TRANSFER = 0.4  # of the work, about


def refuse_remote(cutlist: CutList, what: str) -> None:
    """Refuse to do what needs the sources themselves on this machine.

    Raises:
        ArgumentError: One is remote.
    """
    for source in cutlist.sources:
        if is_uri(source.path):
            raise ArgumentError(
                f"{what} needs the dataset on this machine.",
                hint="fetch it first: demoreel pull",
                uri=source.path,
            )


def render_anywhere(
    cutlist: CutList,
    target: str | os.PathLike[str],
    *,
    form: Form,
    shard: Shard | None = None,
    overwrite: bool = False,
    storage_options: Mapping[str, Any] | None = None,
    report: Report | None = None,
    remember: bool = False,
    **options: Any,
) -> Rendered:
    """Write the dataset that a cut list describes, wherever it and its sources lie.

    Args:
        cutlist: The cut list.
        target: The folder to make, or a URI.
        form: How the result is to lie.
        shard: As for ``render``; only where all lies on this machine.
        overwrite: Of a URI: replace the dataset that is there.
        storage_options: Of a URI: as for ``demoreel.open``.
        report: Called with the share that is done.
        remember: As for ``render``; only where all lies on this machine.
        **options: As for ``render``.

    Raises:
        DemoreelError: As ``render``, ``remote_target`` and ``fetch_folder``.
    """
    if shard is not None:
        refuse_remote(cutlist, "A shard")
    if not is_uri(target):
        if overwrite or storage_options:
            raise ArgumentError(
                "overwrite= and storage_options= are for remote targets.",
                hint="leave them out; an existing folder is never overwritten",
                path=target,
            )
        with local_sources(cutlist, part_of(report, 0.0, _A_TRANSFER)) as here:
            rest = report if here is cutlist else part_of(report, _A_TRANSFER, 1.0)
            return render(
                here, target, form=form, shard=shard, report=rest, remember=remember, **options
            )
    if shard is not None:
        raise ArgumentError("Shards write to a disk that they share.", hint="give a folder")
    for source in cutlist.sources:
        refuse_remote_overlap(source.path, target)
    what = ("cut", cutlist.to_json(), asdict(form), options.get("verification"))

    def make(folder: Path) -> Rendered:
        with local_sources(cutlist, part_of(report, 0.0, _A_TRANSFER / 2)) as here:
            rest = part_of(report, 0.0 if here is cutlist else _A_TRANSFER / 2, 1 - _A_TRANSFER)
            return render(here, folder, form=form, report=rest, **options)

    done, sent = made_and_sent(
        os.fspath(target),
        make,
        work=what,
        note=asdict,
        noted=lambda noted: Rendered(**{**noted, "dropped": tuple(noted.get("dropped", ()))}),
        overwrite=overwrite,
        storage_options=storage_options,
        sending=part_of(report, 1 - _A_TRANSFER, 1.0),
    )
    resumed = done.resumed + sent.files - sent.sent_files
    return replace(done, path=os.fspath(target), bytes=sent.sent_bytes, resumed=resumed)


@contextmanager
def local_sources(cutlist: CutList, report: Report | None = None) -> Iterator[CutList]:
    """Yield the cut list with sources on this machine: copies of what its clips need.

    Cost: of LeRobot's own layouts, fetches the tables and videos that clips lie in; of Lance
    datasets all files. The copies are gone when the block ends.

    Args:
        cutlist: The cut list.
        report: Called with the share that is here.

    Raises:
        ArgumentError: A source has changed since the cut list was made.
        StoreError: A file cannot be had.
        DiskFullError: There is no room.
    """
    remote = [n for n, source in enumerate(cutlist.sources) if is_uri(source.path)]
    if not remote:
        yield cutlist
        return
    sources = list(cutlist.sources)
    with ExitStack() as copies:
        for place, number in enumerate(remote):
            share = part_of(report, place / len(remote), (place + 1) / len(remote))
            copy = local_copy(
                remote_folder(sources[number]), names=_needed(cutlist, number), report=share
            )
            here = copies.enter_context(copy)
            sources[number] = replace(sources[number], path=str(here))
        yield replace(cutlist, sources=tuple(sources))


def _needed(cutlist: CutList, number: int) -> set[str] | None:
    """Return the tables and videos that clips of a source lie in; None is all files."""
    source = cutlist.sources[number]
    reader = open_source(source)
    if reader.layout.startswith("lance"):
        return None
    episodes = {clip.episode for clip in cutlist.clips if clip.source == number}
    positions = [reader.episodes.position_of(episode) for episode in episodes]
    cameras = [key for key in reader.info.video_keys if key not in source.remove]
    return set(episode_files(reader, positions, cameras=cameras))
