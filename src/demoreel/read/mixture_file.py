"""A mixture in a file: YAML or JSON, whose keys are the arguments of ``Mixture``."""

from __future__ import annotations

import dataclasses
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from demoreel.errors import ArgumentError, DatasetNotFoundError, first_line, nearest
from demoreel.read.part import Part

ARGUMENTS = {
    "weights": (str, list),
    "temperature": (int, float),
    "delta_timestamps": (dict,),
    "cameras": (list,),
    "pad": (dict,),
    "missing": (str,),
    "image_size": (list,),
    "seed": (int,),
    "shuffle": (bool,),
    "return_uint8": (bool,),
    "depth_output_unit": (str,),
    "tolerance_s": (int, float),
    "samples_per_epoch": (int,),
    "decode_threads": (int,),
    "decode_device": (str,),
    "gpu_memory_mb": (int,),
}
"""Keys of a file besides ``parts``, and the types of their values."""

SUFFIXES = (".yaml", ".yml", ".json")

_LARGEST = 4 << 20
_IS_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_OF_PART = tuple(field.name for field in dataclasses.fields(Part) if field.name != "_")
_RANGE = re.compile(r"(\d+):(\d+)")


def mixture_arguments(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the arguments of ``Mixture`` that a file holds.

    Args:
        path: A YAML or JSON file. ``episodes: 0:80`` is short for the episodes 0 to 79.
    """
    file = Path(path)
    raw = _parsed(file)
    if not isinstance(raw, Mapping) or not isinstance(raw.get("parts"), list) or not raw["parts"]:
        raise ArgumentError("The file holds no mixture: it has no list `parts`.", file=file)
    _refuse_others(raw, ("parts", *ARGUMENTS), file, "the mixture")
    for key, kinds in ARGUMENTS.items():
        value = raw.get(key)
        if value is not None and (
            not isinstance(value, kinds) or (bool not in kinds and isinstance(value, bool))
        ):
            raise ArgumentError(f"{key} cannot be {value!r}.", file=file)
    found = {key: value for key, value in raw.items() if key in ARGUMENTS and value is not None}
    if "image_size" in found:
        found["image_size"] = tuple(found["image_size"])
    found["parts"] = [_part(one, number, file) for number, one in enumerate(raw["parts"])]
    return found


def reader_arguments(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return those of a file's arguments that ``MixtureReader`` has, under its names."""
    names = {"delta_timestamps": "windows", "depth_output_unit": "depth_unit"}
    others = ("seed", "shuffle", "return_uint8")
    of_a_gpu = ("decode_device", "gpu_memory_mb")  # of a machine that trains; not needed to look
    left_out = (*others, *of_a_gpu)
    return {names.get(key, key): v for key, v in arguments.items() if key not in left_out}


def _parsed(file: Path) -> Any:
    import yaml

    try:
        if file.stat().st_size > _LARGEST:
            raise ArgumentError("The file is too large for a mixture.", file=file)
        text = file.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise DatasetNotFoundError("There is no such file.", path=file) from error
    except (OSError, UnicodeDecodeError) as error:
        raise ArgumentError(f"The file cannot be read: {first_line(error)}.", file=file) from error
    try:
        return json.loads(text) if file.suffix == ".json" else yaml.safe_load(text)
    except (ValueError, RecursionError, yaml.YAMLError) as error:
        raise ArgumentError(
            f"The file is neither YAML nor JSON: {' '.join(str(error).split())[:200]}.", file=file
        ) from error


def _part(raw: Any, number: int, file: Path) -> Part:
    if isinstance(raw, str):
        raw = {"source": raw}
    if not isinstance(raw, Mapping) or not isinstance(raw.get("source"), str):
        raise ArgumentError(f"Part {number} names no source.", file=file)
    _refuse_others(raw, _OF_PART, file, f"part {number}")
    given = {str(key): value for key, value in raw.items() if value is not None}
    source = given.pop("source")
    if not _IS_URI.match(source):
        source = str(file.parent / source)
    for name in ("episodes", "exclude_episodes"):
        if name in given:
            given[name] = _episodes(given[name], name, number, file)
    for name in ("rename", "dims", "storage_options"):
        if name in given and not isinstance(given[name], Mapping):
            raise ArgumentError(f"{name} of part {number} is no object.", file=file)
    return Part(source, **given)


def _episodes(value: Any, name: str, number: int, file: Path) -> list[int]:
    if isinstance(value, str) and (match := _RANGE.fullmatch(value)):
        return list(range(int(match[1]), int(match[2])))
    if isinstance(value, list) and all(isinstance(one, int) for one in value):
        return value
    raise ArgumentError(
        f"{name} of part {number} must be a list of numbers, or FIRST:END, not {value!r}.",
        file=file,
    )


def _refuse_others(raw: Mapping[Any, Any], known: tuple[str, ...], file: Path, where: str) -> None:
    for key in raw:
        if key not in known:
            raise ArgumentError(
                f"{key!r} is no argument of {where}.", hint=nearest(str(key), known), file=file
            )
