"""``meta.info``: what ``info.json`` says, as attributes and as a dict."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from demoreel.model import Info


class InfoView(dict[str, Any]):
    """What ``info.json`` says: ``info.fps`` and ``info["fps"]`` are the same.

    Shapes are tuples, as in lerobot. Changing it changes nothing on disk: ``meta.tools = ...`` and
    ``meta.update_chunk_settings(...)`` do.
    """

    codebase_version: str
    fps: float
    features: dict[str, dict[str, Any]]
    total_episodes: int
    total_frames: int
    total_tasks: int
    chunks_size: int
    data_files_size_in_mb: float
    video_files_size_in_mb: float
    data_path: str
    video_path: str | None
    robot_type: str | None
    splits: dict[str, str]
    tools: list[dict[str, Any]] | None

    @classmethod
    def of(cls, info: Info) -> InfoView:
        """Return what a dataset's info says; every value is the caller's own."""
        sizes = {
            "data_files_size_in_mb": info.data_files_size_in_mb,
            "video_files_size_in_mb": info.video_files_size_in_mb,
        }
        return cls.from_dict({**sizes, **info.to_json()})

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> InfoView:
        """Return this from what ``to_dict`` has given, or ``info.json`` holds."""
        made = cls(copy.deepcopy(dict(data)))
        for entry in made.get("features", {}).values():
            if isinstance(entry.get("shape"), list):
                entry["shape"] = tuple(entry["shape"])
        return made

    def to_dict(self) -> dict[str, Any]:
        """Return what ``info.json`` would hold: lists for tuples, no ``tools`` that are None."""
        raw = copy.deepcopy(dict(self))
        for entry in raw.get("features", {}).values():
            if isinstance(entry.get("shape"), tuple):
                entry["shape"] = list(entry["shape"])
        if raw.get("tools") is None:
            raw.pop("tools", None)
        return raw

    def __getattr__(self, name: str) -> Any:
        if name in self:
            return self[name]
        if name == "tools":  # a dataset need not declare any
            return None
        raise AttributeError(name)

    def __setattr__(self, name: str, value: Any) -> None:
        self[name] = value

    def __delattr__(self, name: str) -> None:
        if name not in self:
            raise AttributeError(name)
        del self[name]


DEFAULT_TOOLS: tuple[Mapping[str, Any], ...] = (
    {
        "type": "function",
        "function": {
            "name": "say",
            "description": "Speak a short utterance to the user via the TTS executor.",
            "parameters": {
                "type": "object",
                "properties": {
                    "text": {"type": "string", "description": "The verbatim text to speak."}
                },
                "required": ["text"],
            },
        },
    },
)
"""The tools of a dataset that declares none: the format's default."""
