"""What lerobot's editing functions share: which dataset is cut, where the result goes, its face."""

from __future__ import annotations

import copy
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from demoreel.edit.cut import Cut, Rooted, cut
from demoreel.errors import ArgumentError, TargetExistsError
from demoreel.torch.dataset import LeRobotDataset
from demoreel.torch.home import local_root, recorded_root

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


def original(dataset: Editable) -> Original:
    """Return a dataset as the functions edit it.

    Raises:
        ArgumentError: It was opened with ``episodes=``, or it is being recorded.
        DatasetNotFoundError: There is no such dataset.
    """
    if isinstance(dataset, (str, os.PathLike)):
        folder = Path(dataset)
        if not folder.is_dir() and isinstance(dataset, str):
            return Original(cut(local_root(dataset, None, None)), dataset, {})
        return Original(cut(folder), folder.resolve().name, {})
    if getattr(dataset, "episodes", None) is not None:
        raise ArgumentError(
            "This dataset was opened with episodes=, and editing is for whole ones.",
            hint="open it without; or demoreel.cut(PATH).keep([...]).render(OUT)",
            dataset=dataset.root,
        )
    if getattr(dataset, "_recorder", None) is not None:
        raise ArgumentError(
            "This dataset is being recorded.",
            hint="finalize() it first, and open it again",
            dataset=dataset.root,
        )
    names = ("image_transforms", "delta_timestamps", "tolerance_s")
    settings = {name: getattr(dataset, name) for name in names if hasattr(dataset, name)}
    whole = cut(dataset.reader if isinstance(dataset, LeRobotDataset) else dataset)
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
    """Let an open dataset read its metadata again, and return it."""
    dataset.reader = copy.copy(dataset.reader)  # a copy opens its files itself
    dataset._describe()
    return dataset


def written(made: Cut, source: Original, repo_id: str, target: Path, **form: Any) -> LeRobotDataset:
    """Render a cut, and open the result."""
    made.render(target, **form)
    return opened(target, repo_id, source)
