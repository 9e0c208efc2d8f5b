"""How a depth camera's millimetres are coded in 12-bit video."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

DepthUnit = Literal["mm", "m"]


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
