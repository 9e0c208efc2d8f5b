"""lerobot's dataset factory, with demoreel underneath.

::

    import demoreel.torch.lerobot      # from now on, make_dataset(cfg) opens with demoreel
    lerobot-train --demoreel.discover_packages_path=demoreel.torch.lerobot ...

Importing this module plugs demoreel in: ``make_dataset`` and ``make_train_eval_datasets`` of
``lerobot.datasets.factory`` then open datasets of every layout that demoreel reads. Nothing else of
lerobot is changed; ``unplug`` undoes it. lerobot's command line imports a package that an argument
ending in ``discover_packages_path`` names, so there one argument does the same.

Datasets that are not on this machine are fetched; where ``dataset.root`` is a URI (``s3://...``,
``hf://...``), they are read as they lie there. Where it is a YAML or JSON file, it is a mixture.
``dataset.streaming=true`` stays lerobot's own affair.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from demoreel.errors import ArgumentError, MissingExtraError
from demoreel.layouts.detect import open_reader
from demoreel.read.mixture_file import SUFFIXES
from demoreel.storage.folder import dataset_folder
from demoreel.torch.dataset import LeRobotDataset
from demoreel.torch.lance import CLASSES, right_class
from demoreel.torch.metadata import LeRobotDatasetMetadata
from demoreel.torch.place import is_there, metadata_root, remote_uri

if TYPE_CHECKING:
    from demoreel.torch.mixture import Mixture

__all__ = ["open_dataset", "open_metadata", "plug_in", "unplug"]

_FACTORY = "lerobot.datasets.factory"
_theirs: dict[str, Any] = {}


def plug_in() -> None:
    """Make lerobot's dataset factory open datasets with demoreel.

    Cost: imports lerobot, some seconds. A second call changes nothing.

    Raises:
        MissingExtraError: lerobot is not installed, or not with its dataset extra.
        ArgumentError: This lerobot's factory is of another make.
    """
    if _theirs:
        return
    factory = _factory()
    ours = {"LeRobotDataset": open_dataset, "LeRobotDatasetMetadata": open_metadata}
    for name in ours:
        if not hasattr(factory, name):
            raise ArgumentError(
                f"{_FACTORY} of this lerobot does not use {name}.",
                hint="demoreel plugs into lerobot from 0.6; elsewhere, use its classes directly",
            )
    for name, replacement in ours.items():
        _theirs[name] = getattr(factory, name)
        setattr(factory, name, replacement)


def unplug() -> None:
    """Give lerobot's dataset factory its own classes back; open datasets stay as they are."""
    if not _theirs:
        return
    factory = _factory()
    for name in list(_theirs):
        setattr(factory, name, _theirs.pop(name))


def open_dataset(repo_id: str, root: Any = None, **options: Any) -> LeRobotDataset | Mixture:
    """Open a dataset with the class for its layout; fetch it if it is not on this machine.

    Args:
        repo_id: ``me/my_task``; looked for as ``LeRobotDataset`` does if ``root`` is None.
        root: The dataset's folder, the URI of one that is read where it lies, or the file of a
            mixture.
        **options: As for ``demoreel.torch.LeRobotDataset``.
    """
    if _is_mixture(root):
        return _open_mixture(root, **options)
    uri = remote_uri(repo_id, root, options.get("revision"), stream=False)
    if uri is not None:
        reader = open_reader(dataset_folder(uri))
    elif root is not None and not is_there(Path(root)):
        return LeRobotDataset(repo_id, root=root, **options)
    else:
        reader = open_reader(metadata_root(repo_id, root, options.get("revision")))
    name = right_class(reader.layout, filmed=bool(reader.info.video_keys))
    return CLASSES[name or "LeRobotDataset"](repo_id, root=root, **options)


def open_metadata(
    repo_id: str, root: Any = None, revision: str | None = None, **_: Any
) -> LeRobotDatasetMetadata:
    """Open a dataset's metadata; what lerobot says of kinds of repositories is ignored."""
    if _is_mixture(root):
        return _open_mixture(root).meta
    return LeRobotDatasetMetadata(repo_id, root, revision)


def _is_mixture(root: Any) -> bool:
    return root is not None and str(root).endswith(SUFFIXES) and Path(root).is_file()


def _open_mixture(root: Any, **options: Any) -> Mixture:
    """Open a mixture as lerobot's training reads it: its sampler deals out an epoch's samples.

    An epoch is as long as the slowest part needs for all of its frames.
    """
    from demoreel.torch.mixture import Mixture

    if options.get("episodes") is not None:
        raise ArgumentError(
            "The parts of a mixture choose their episodes themselves.",
            hint="give episodes= or exclude_episodes= in the file, and no dataset.episodes or "
            "dataset.eval_split",
            file=root,
        )
    known = ("delta_timestamps", "image_transforms", "return_uint8", "tolerance_s")
    given = {name: options[name] for name in known if options.get(name) is not None}
    if options.get("depth_output_unit"):
        given["depth_output_unit"] = options["depth_output_unit"]
    mixture = Mixture.from_file(root, rank=0, world_size=1, **given)
    return mixture.with_whole_epochs()


def _factory() -> ModuleType:
    try:
        return import_module(_FACTORY)
    except ImportError as error:
        raise MissingExtraError(
            f"lerobot's dataset factory cannot be imported ({error}).",
            hint="pip install 'lerobot[dataset]>=0.6'; without lerobot, use demoreel.torch",
        ) from error


plug_in()
