"""The toy arm as a robot and its leader: what a recording loop talks to, without any hardware.

Both speak as lerobot's do: joints by name (``shoulder_pan.pos``), cameras by theirs (``front``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from demoreel.testing.toy_arm import FRONT_SIZE, JOINTS, PICK, WRIST_SIZE, ToyArm

_CAMERAS = {"front": FRONT_SIZE, "wrist": WRIST_SIZE}
_POSITIONS = tuple(f"{joint}.pos" for joint in JOINTS)


class ToyRobot:
    """A toy arm that does a task over and over; a ``ToyLeader`` says what it does next.

    Args:
        task: What it does; see ``toy_arm.TASKS``.
        length: Frames that the task takes.
        seed: Two robots with the same seed do the same.
    """

    name = "toy_arm"

    def __init__(self, *, task: str = PICK, length: int = 150, seed: int = 0) -> None:
        self.task = task
        self._length = length
        self._arm = ToyArm(seed)
        self._frames: Iterator[dict[str, Any]] = iter(())
        self._now: dict[str, Any] = {}

    @property
    def observation_features(self) -> dict[str, Any]:
        """Joints, and cameras with their sizes."""
        cameras = {name: (*size, 3) for name, size in _CAMERAS.items()}
        return {**dict.fromkeys(_POSITIONS, float), **cameras}

    @property
    def action_features(self) -> dict[str, Any]:
        """Joints."""
        return dict.fromkeys(_POSITIONS, float)

    def begin(self) -> None:
        """Put everything back and begin the task again."""
        self._frames = self._arm.episode(self.task, self._length)

    def get_observation(self) -> dict[str, Any]:
        """Return joints and images, one step of the task further."""
        try:
            self._now = next(self._frames)
        except StopIteration:
            self.begin()
            self._now = next(self._frames)
        images = {name: self._now[f"observation.images.{name}"] for name in _CAMERAS}
        return {**_by_name(self._now["observation.state"]), **images}

    def planned(self) -> dict[str, float]:
        """Return what the task requires now."""
        return _by_name(self._now["action"])

    def send_action(self, action: Mapping[str, float]) -> Mapping[str, float]:
        """Return the action: the arm does what its task requires."""
        return action


class ToyLeader:
    """Says what a ``ToyRobot`` does next."""

    def __init__(self, robot: ToyRobot) -> None:
        self._robot = robot

    def get_action(self) -> dict[str, float]:
        """Return what the robot's task requires now."""
        return self._robot.planned()


def _by_name(joints: np.ndarray) -> dict[str, float]:
    return dict(zip(_POSITIONS, joints.tolist(), strict=True))
