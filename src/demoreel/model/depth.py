"""Converts depth between metres and the 12-bit codes of a video.

Codes are spaced in the logarithm of depth, so that near things keep millimetres and far things lose
centimetres, as a depth sensor does. Decoding is one table of 4096 values: looking an image up
in it is cheaper than an exponential per pixel, and gives lerobot's millimetres exactly.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

import numpy as np

from demoreel.errors import ArgumentError

DepthUnit = Literal["mm", "m"]

LARGEST_CODE = 4095
_MM_PER_METRE = 1000.0
_LARGEST_UINT16 = 65535.0


@dataclass(frozen=True, slots=True)
class DepthCode:
    """The mapping between metres and the codes 0..4095 of a depth video.

    Attributes:
        minimum: Depth in metres at code 0.
        maximum: Depth in metres at code 4095.
        shift: Metres added before the logarithm.
        log: Whether codes are spaced in the logarithm of depth.
        unit: The unit the frames were recorded in.
    """

    minimum: float = 0.01
    maximum: float = 10.0
    shift: float = 3.5
    log: bool = True
    unit: DepthUnit = "mm"

    @classmethod
    def from_info(cls, info: Mapping[str, Any]) -> DepthCode:
        """Read the mapping from a feature's ``info``; absent fields take LeRobot's defaults."""
        unit: DepthUnit = "m" if info.get("depth_unit") == "m" else "mm"
        default = cls()
        return cls(
            minimum=float(info.get("video.depth_min", default.minimum)),
            maximum=float(info.get("video.depth_max", default.maximum)),
            shift=float(info.get("video.shift", default.shift)),
            log=bool(info.get("video.use_log", default.log)),
            unit=unit,
        )

    def to_info(self) -> dict[str, Any]:
        """Return the fields that ``from_info`` reads."""
        return {
            "is_depth_map": True,
            "depth_unit": self.unit,
            "video.depth_min": self.minimum,
            "video.depth_max": self.maximum,
            "video.shift": self.shift,
            "video.use_log": self.log,
        }


def unit_of(dtype: np.dtype[Any]) -> DepthUnit:
    """Return the unit that depths of a dtype come in: floats are metres, integers millimetres."""
    return "m" if dtype.kind == "f" else "mm"


def whole_millimetres(metres: np.ndarray) -> np.ndarray:
    """Return depths in whole millimetres, for counting; what is not finite is left out.

    Returns:
        1 x n of uint16; what 16 bits do not hold goes to their nearest end.
    """
    known = metres[np.isfinite(metres)].astype(np.float64)
    scaled = np.rint(known * _MM_PER_METRE).clip(0, _LARGEST_UINT16)
    return (scaled if known.size else np.zeros(1)).astype(np.uint16).reshape(1, -1)


def encode_depth(depth: np.ndarray, code: DepthCode) -> np.ndarray:
    """Turn depths into codes; what is outside the code's range goes to its nearest end.

    Costs about 10 ms for 640x480 pixels.

    Args:
        depth: Integers are millimetres, floats are metres; any shape.
        code: The mapping to use.

    Returns:
        uint16 codes 0..4095, of the same shape.
    """
    if depth.dtype.kind not in "iuf":
        raise ArgumentError(
            f"Depth must be integer millimetres or float metres, not {depth.dtype}."
        )
    _check(code)
    # All in float32 and in the unit that came in, as lerobot does: the codes must be the same.
    factor = 1.0 if depth.dtype.kind == "f" else _MM_PER_METRE
    low = np.float32(code.minimum * factor)
    high = np.float32(code.maximum * factor)
    shift = np.float32(code.shift * factor)
    values = depth.astype(np.float32)
    if code.log:
        start = math.log(float(low + shift))
        span = math.log(float(high + shift)) - start
        with np.errstate(invalid="ignore", divide="ignore"):
            share = (np.log(values + shift) - start) / span
    else:
        share = (values - low) / (high - low)
    codes = np.nan_to_num(np.rint(share * LARGEST_CODE), nan=0.0).clip(0, LARGEST_CODE)
    return np.asarray(codes, dtype=np.uint16)


@lru_cache(maxsize=64)
def depth_table(code: DepthCode, *, unit: DepthUnit = "mm") -> np.ndarray:
    """Return the depth of every code: ``depth_table(code)[codes]`` decodes an image.

    Args:
        code: The mapping the video was encoded with.
        unit: ``mm`` gives whole millimetres, equal to lerobot's; ``m`` gives metres, where the last
            bit of lerobot's value depends on the processor it runs on.

    Returns:
        4096 float32 values, read-only, shared between calls.
    """
    if unit not in ("mm", "m"):
        raise ArgumentError(f"unit must be 'mm' or 'm', not {unit!r}.")
    _check(code)
    low, high = float(code.minimum), float(code.maximum)
    if code.log:
        start = math.log(low + code.shift)
        step = (math.log(high + code.shift) - start) / LARGEST_CODE
    else:
        start, step = low, (high - low) / LARGEST_CODE
    table = np.arange(LARGEST_CODE + 1, dtype=np.float32)
    table *= np.float32(step)
    table += np.float32(start)
    if code.log:
        # float32 exponentials differ between libraries and processors; the float64 one, rounded,
        # is within one step of them all, so whole millimetres come out the same everywhere.
        table = np.exp(table.astype(np.float64)).astype(np.float32)
        table -= np.float32(code.shift)
    np.clip(table, np.float32(low), np.float32(high), out=table)
    if unit == "mm":
        table *= np.float32(_MM_PER_METRE)
        np.rint(table, out=table)
        np.clip(table, 0.0, np.float32(_LARGEST_UINT16), out=table)
    table.setflags(write=False)
    return table


def _check(code: DepthCode) -> None:
    if not code.minimum < code.maximum:
        raise ArgumentError(
            f"A depth code from {code.minimum} m to {code.maximum} m has no room for any depth."
        )
    if code.log and code.minimum + code.shift <= 0:
        raise ArgumentError(
            f"A logarithmic depth code needs minimum + shift above 0, not {code.minimum} + "
            f"{code.shift}."
        )
