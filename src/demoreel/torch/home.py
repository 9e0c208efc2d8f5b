"""Where LeRobot keeps datasets on this machine. Looks, and never asks the network."""

from __future__ import annotations

import os
from pathlib import Path

from demoreel.errors import ArgumentError, DatasetNotFoundError


def lerobot_home() -> Path:
    """Return ``HF_LEROBOT_HOME``, or its default under ``HF_HOME``."""
    home = os.environ.get("HF_LEROBOT_HOME")
    if home:
        return Path(home).expanduser()
    cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    hub = os.environ.get("HF_HOME") or cache / "huggingface"
    return Path(hub).expanduser() / "lerobot"


def recorded_root(repo_id: str) -> Path:
    """Return the folder that a dataset of this name is recorded into.

    Raises:
        ArgumentError: ``repo_id`` would lead outside ``HF_LEROBOT_HOME``.
    """
    parts = Path(repo_id).parts
    if not parts or Path(repo_id).is_absolute() or ".." in parts:
        raise ArgumentError(f"{repo_id!r} is not a repo_id such as 'me/my_task'.")
    return lerobot_home() / repo_id


def local_root(repo_id: str, root: str | Path | None, revision: str | None) -> Path:
    """Return the folder of a dataset that is on this machine.

    Looks in ``root`` if given; else in ``HF_LEROBOT_HOME/repo_id``, then among the snapshots that
    lerobot has downloaded.

    Raises:
        DatasetNotFoundError: It is not there.
        ArgumentError: ``repo_id`` would lead outside ``HF_LEROBOT_HOME``.
    """
    if root is not None:
        return Path(root)
    recorded = recorded_root(repo_id)
    if (recorded / "meta" / "info.json").is_file():
        return recorded
    snapshot = _snapshot(repo_id, revision)
    if snapshot is not None:
        return snapshot
    raise DatasetNotFoundError(
        f"The dataset {repo_id!r} is not on this machine.",
        hint=f"pass root=, or fetch it: hf download {repo_id} --repo-type dataset "
        f"--local-dir {recorded}",
        looked_in=recorded,
    )


def _snapshot(repo_id: str, revision: str | None) -> Path | None:
    """Return the downloaded snapshot of a revision (default v3.0, then v2.1, v2.0, main)."""
    folder = lerobot_home() / "hub" / ("datasets--" + repo_id.replace("/", "--"))
    for name in [revision] if revision else ["v3.0", "v2.1", "v2.0", "main"]:
        reference = folder / "refs" / name
        commit = reference.read_text().strip() if reference.is_file() else name
        snapshot = folder / "snapshots" / commit
        if (snapshot / "meta" / "info.json").is_file():
            return snapshot
    return None
