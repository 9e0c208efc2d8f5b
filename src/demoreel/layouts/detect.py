"""Which layout lies in a folder, and the reader for it."""

from __future__ import annotations

from pathlib import Path

from demoreel.errors import DatasetNotFoundError, MetadataError, UnsupportedVersionError
from demoreel.layouts.base import Reader
from demoreel.model import Info
from demoreel.storage.json_files import read_json


def open_reader(root: Path) -> Reader:
    """Open the dataset in this folder, whatever its layout.

    Cost: reads the metadata, no table and no video.

    Raises:
        DatasetNotFoundError: The folder is not there, or holds no dataset.
        UnsupportedVersionError: Its version is not readable.
        MetadataError: Its metadata are broken, or it has no episodes.
    """
    info_path = root / "meta" / "info.json"
    if not info_path.is_file():
        raise _not_a_dataset(root)
    info = Info.from_json(read_json(info_path), where=str(info_path))
    _refuse_lance(root, info)
    reader = _reader_for(root, info)
    if len(reader.episodes) == 0:
        raise MetadataError(
            "The dataset has no episodes yet.", hint="record one, then open it", dataset=root
        )
    return reader


def _reader_for(root: Path, info: Info) -> Reader:
    if info.version.startswith("v2"):
        from demoreel.layouts.v2.reader import V2Reader

        return V2Reader(root, info)
    from demoreel.layouts.v3.reader import V3Reader

    return V3Reader(root, info)


def _refuse_lance(root: Path, info: Info) -> None:
    tables = sorted(place.name for place in root.glob("*.lance"))
    if info.extra.get("storage_format") == "lance" or (tables and not (root / "data").is_dir()):
        raise UnsupportedVersionError(
            "This dataset lies in Lance tables; demoreel reads v2.0, v2.1 and v3.0.",
            hint="open the dataset that it was made from",
            dataset=root,
            tables=", ".join(tables) or None,
        )


def _not_a_dataset(root: Path) -> DatasetNotFoundError:
    if not root.exists():
        return DatasetNotFoundError("There is nothing at this path.", path=root)
    inside = sorted(place.parent.parent for place in root.glob("*/meta/info.json"))
    if inside:
        names = ", ".join(str(place) for place in inside[:3])
        return DatasetNotFoundError(
            "This folder is not a dataset, but holds some.", hint=f"open {names}", path=root
        )
    return DatasetNotFoundError(
        "This folder holds no dataset: there is no meta/info.json.",
        hint="give the folder that contains meta/, data/ and videos/",
        path=root,
    )
