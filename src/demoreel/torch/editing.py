"""What all dataset tools share: which dataset is edited, and where the result goes."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from demoreel.edit.cut import Cut, Rooted, cut
from demoreel.edit.sources import open_source
from demoreel.errors import ArgumentError, TargetExistsError
from demoreel.run.anywhere import is_here
from demoreel.storage.commit.replace import refuse_irreplaceable, replacing_dataset
from demoreel.torch.dataset import LeRobotDataset
from demoreel.torch.place import local_root, recorded_root

log = logging.getLogger(__name__)

PathLike = str | os.PathLike[str]
Editable = LeRobotDataset | Rooted | PathLike
"""A dataset that is open (ours, the Lance classes, lerobot's own), its folder, or its repo_id."""


@dataclass(frozen=True, slots=True)
class Original:
    """A dataset that is to be edited.

    Attributes:
        cut: All of its episodes.
        repo_id: What it is called.
        settings: How it was opened; the result is opened likewise.
    """

    cut: Cut
    repo_id: str
    settings: Mapping[str, Any]


def original(dataset: Editable, *, is_part: bool = False) -> Original:
    """Return a dataset as the functions edit it.

    Args:
        dataset: The dataset.
        is_part: Whether one that was opened with ``episodes=`` is taken, as the whole it is of.

    Raises:
        ArgumentError: It was opened with ``episodes=``, or it is being recorded.
        DatasetNotFoundError: There is no such dataset.
    """
    if isinstance(dataset, (str, os.PathLike)):
        folder = Path(dataset)
        if not folder.is_dir() and isinstance(dataset, str):
            return Original(cut(local_root(dataset, None, None)), dataset, {})
        return Original(cut(folder), folder.resolve().name, {})
    if getattr(dataset, "episodes", None) is not None and not is_part:
        raise ArgumentError(
            "This dataset was opened with episodes=, and editing is for whole ones.",
            hint="open it without; or demoreel.cut(PATH).keep([...]).render(OUT)",
            dataset=dataset.root,
        )
    if getattr(dataset, "_recorder", None) is not None:
        raise ArgumentError(
            "This dataset is being recorded.",
            hint="finalize() it first",
            dataset=dataset.root,
        )
    names = ("image_transforms", "delta_timestamps", "tolerance_s")
    settings = {name: getattr(dataset, name) for name in names if hasattr(dataset, name)}
    if isinstance(dataset, LeRobotDataset) and dataset.reader is None:
        raise ArgumentError("The dataset has no episodes.", dataset=dataset.root)
    if not isinstance(dataset, LeRobotDataset):
        whole = cut(dataset)
    elif dataset.root != dataset.reader.root or (is_part and dataset.episodes is not None):
        whole = cut(dataset.root)  # scripts move a dataset aside, and say so by its root
    else:
        whole = cut(dataset.reader)
    return Original(whole, str(getattr(dataset, "repo_id", dataset.root.name)), settings)


def place_of(repo_id: str, output_dir: PathLike | None) -> Path:
    """Return where a result goes: ``output_dir``, or its place under ``HF_LEROBOT_HOME``.

    Raises:
        ArgumentError: ``repo_id`` would lead outside it.
    """
    return recorded_root(repo_id) if output_dir is None else Path(output_dir)


def target_of(repo_id: str, output_dir: PathLike | None) -> Path:
    """Return where a result goes, and that nothing is there.

    Raises:
        ArgumentError: ``repo_id`` would lead outside ``HF_LEROBOT_HOME``.
        TargetExistsError: There is something already.
    """
    target = place_of(repo_id, output_dir)
    if target.exists():
        raise TargetExistsError(
            "There is something at the target already.",
            hint="choose another output_dir, or delete it",
            path=target,
        )
    return target


def opened(target: Path, repo_id: str, source: Original | None = None) -> LeRobotDataset:
    """Open a result as its source was opened; windows of features that are gone are left out."""
    settings = dict(source.settings) if source is not None else {}
    windows = settings.get("delta_timestamps")
    if windows:
        kept = LeRobotDataset(repo_id, root=target).features
        settings["delta_timestamps"] = {key: offs for key, offs in windows.items() if key in kept}
    return LeRobotDataset(repo_id, root=target, **settings)


def opened_anew(dataset: LeRobotDataset) -> LeRobotDataset:
    """Let an open dataset read its files again, and return it."""
    dataset.reopen()
    return dataset


def refuse_unknown(numbers: Iterable[int], whole: Cut) -> None:
    """Refuse episodes that are not there, in the words that scripts know."""
    there = set(open_source(whole.cutlist.sources[0]).episodes.episode_index.tolist())
    wrong = sorted({int(number) for number in numbers} - there)
    if wrong:
        raise ArgumentError(
            f"Invalid episode indices: {wrong}.",
            hint=f"the dataset has {len(there)} episodes, from {min(there)} to {max(there)}",
        )


def replace_source(source: Original, made: Cut, **form: Any) -> None:
    """Put the result of a cut in the place of its source, which is deleted when it is whole."""
    reader = open_source(source.cut.cutlist.sources[0])
    root = Path(source.cut.cutlist.sources[0].path)
    if reader.is_remote or not is_here(source.cut.cutlist.sources[0].path):
        raise ArgumentError(
            "A dataset that is not on this machine is not changed.", hint="give output_dir="
        )
    if reader.layout not in ("v3.0", "v2.1"):
        raise ArgumentError(
            f"A dataset in the layout {reader.layout} is not changed in this way.",
            hint="give output_dir=: the result is a new dataset",
            dataset=root,
        )
    refuse_irreplaceable(root)
    with replacing_dataset(root, None) as new:
        render_and_warn(made, new, layout=reader.layout, **form)


def render_and_warn(made: Cut, target: Path, **form: Any) -> None:
    """Render a cut, and log what it does not keep."""
    for what in made.render(target, **form).dropped:
        log.warning("%s: dropped: %s", target, what)


def written(made: Cut, source: Original, repo_id: str, target: Path, **form: Any) -> LeRobotDataset:
    """Render a cut, and open the result."""
    render_and_warn(made, target, **form)
    return opened(target, repo_id, source)


def changed_in_place(dataset: Editable, source: Original) -> LeRobotDataset:
    """Return a dataset whose files have changed, as it is now: the object that was given."""
    if isinstance(dataset, LeRobotDataset):
        return opened_anew(dataset)
    return opened(Path(source.cut.cutlist.sources[0].path), source.repo_id, source)
