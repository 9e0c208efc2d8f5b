"""From an object store, or a bucket on the Hub, to a plain folder."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

from demoreel.edit.cut import cut
from demoreel.edit.target_info import Layout
from demoreel.errors import DatasetNotFoundError
from demoreel.hub.needed import INFO
from demoreel.hub.pull import Pulled
from demoreel.hub.pull_staging import look_at_target, pull_staging
from demoreel.hub.pulled import write_record
from demoreel.layouts.episode_files import episode_files
from demoreel.read.dataset import Dataset
from demoreel.run.staging import refuse_small_disk
from demoreel.storage.far.fetch import fetch_folder, list_files, state_of
from demoreel.storage.far.store_calls import Listed
from demoreel.storage.far.uris import store_of


def pull_far(
    uri: str,
    target: Path,
    *,
    episodes: tuple[int, ...] | None,
    overwrite: bool,
    storage_options: Mapping[str, Any] | None,
    dry_run: bool,
    report: Callable[[float], None] | None,
) -> Pulled:
    """Fetch a dataset that lies far away into a plain folder; see ``demoreel.pull``.

    What is told of it names the URI as the repository, and letters that change with the dataset as
    the commit.
    """
    there = look_at_target(target, uri, overwrite=overwrite)
    if there.objection is not None:
        raise there.objection
    files = list_files(store_of(uri, storage_options))
    if INFO not in files:
        raise DatasetNotFoundError(
            f"There is no dataset at this place: no {INFO}.", hint="check the URI", uri=uri
        )
    state = state_of(files, uri)
    needed = files if episodes is None else _needed(uri, episodes, files, storage_options)
    size = sum(file.size for file in needed.values())
    before = there.record
    current = before is not None and (before.commit, before.episodes) == (state, episodes)
    fetched = 0 if current else size
    if not current and not dry_run:
        refuse_small_disk(target, size)
        with pull_staging(target, uri, episodes) as staging:
            made = staging.dataset
            if episodes is None:
                done = fetch_folder(uri, made, storage_options=storage_options, report=report)
                fetched = done.fetched_bytes
            else:
                made = staging.cut
                chosen = cut(uri, storage_options=storage_options).keep(list(episodes))
                chosen.render(made, layout=_layout(uri, storage_options), report=report)
            write_record(made, repo_id=uri, commit=state, episodes=episodes, files=None)
            staging.commit(made, replace=there.is_there)
    return Pulled(
        repo_id=uri,
        target=str(target),
        revision=state,
        commit=state,
        episodes=episodes,
        files=len(needed),
        bytes=size,
        fetched_files=0 if current else len(needed),
        fetched_bytes=fetched,
        was_up_to_date=current,
        dry_run=dry_run,
    )


def _layout(uri: str, storage_options: Mapping[str, Any] | None) -> Layout:
    layout = Dataset(uri, storage_options=storage_options).layout
    return cast("Layout", "v2.1" if layout.startswith("v2") else layout)


def _needed(
    uri: str,
    episodes: tuple[int, ...],
    files: Mapping[str, Listed],
    storage_options: Mapping[str, Any] | None,
) -> dict[str, Listed]:
    """Return the files that episodes need: of a Lance dataset, all."""
    dataset = Dataset(uri, storage_options=storage_options)
    if dataset.layout.startswith("lance"):
        return dict(files)
    reader = dataset.reader
    positions = [reader.episodes.position_of(number) for number in episodes]
    names = set(episode_files(reader, positions, cameras=reader.info.video_keys))
    return {n: f for n, f in files.items() if n.startswith("meta/") or n in names}
