"""A toy robot arm: smooth episodes of two tasks, seen by two cameras, drawn with numpy alone.

Small enough to read, rich enough to try a dataset library on: six joints like an SO-101, actions
that lead the state, a cube that is really lifted and a block that is really pushed, and images
that follow from the joints. A frame costs about 2 ms.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from demoreel.errors import ArgumentError, UnknownKeyError, nearest

JOINTS = ("shoulder_pan", "shoulder_lift", "elbow_flex", "wrist_flex", "wrist_roll", "gripper")
"""Degrees, save the gripper: 0 is shut, 100 open."""

PICK = "pick the red cube"
PUSH = "push the blue block to the line"
TASKS = (PICK, PUSH)

FRONT_SIZE = (240, 320)
WRIST_SIZE = (120, 160)

_UPPER, _FORE, _HAND = 0.17, 0.15, 0.08  # metres
_SHOULDER_HEIGHT = 0.09
_HALF_CUBE, _HALF_FINGERS = 0.018, 0.022
_LINE = 0.30
_FOLLOW = 0.45  # share of the way to its target that a joint moves in one frame

_PIXELS_PER_METRE = 560.0
_BASE_COLUMN, _TABLE_ROW = 84.0, 188.0

_ORANGE, _DARK, _STEEL = (255.0, 160.0, 62.0), (54.0, 58.0, 70.0), (226.0, 231.0, 238.0)
_RED, _BLUE, _WHITE = (206.0, 52.0, 48.0), (52.0, 98.0, 200.0), (246.0, 244.0, 236.0)

_LIDS = {_RED: (240.0, 92.0, 80.0), _BLUE: (92.0, 140.0, 236.0)}
_WOOD = (188.0, 151.0, 112.0)

Colour = tuple[float, float, float]
Point = tuple[float, float]


@dataclass
class _Scene:
    """What is on the table, in metres from the arm's foot."""

    pushes: bool
    x: float
    aside: float
    turn: float
    height: float = 0.0
    held: bool = False


class ToyArm:
    """An arm that does its tasks over and over, a little differently each time.

    Args:
        seed: Two arms with the same seed give the same sequence of episodes.
    """

    def __init__(self, seed: int = 0) -> None:
        self._random = np.random.default_rng(seed)
        self._backdrop = _front_backdrop()

    def episode(self, task: str, length: int) -> Iterator[dict[str, Any]]:
        """Yield the frames of one episode.

        Args:
            task: One of ``TASKS``.
            length: Frames; the task is done within them, whatever their number.

        Yields:
            ``observation.state`` and ``action`` (6 float32, see ``JOINTS``), the images
            ``observation.images.front`` (240x320x3) and ``observation.images.wrist``
            (120x160x3), uint8, and ``task``. Every array is the caller's to keep.

        Raises:
            UnknownKeyError: There is no such task.
            ArgumentError: The length is not positive.
        """
        if task not in TASKS:
            raise UnknownKeyError(f"The toy arm has no task {task!r}.", hint=nearest(task, TASKS))
        if length < 1:
            raise ArgumentError(f"An episode has at least one frame, not {length}.")
        scene = _Scene(
            pushes=task == PUSH,
            x=self._random.uniform(0.17, 0.20)
            if task == PUSH
            else self._random.uniform(0.18, 0.27),
            aside=self._random.uniform(-0.03, 0.03),
            turn=self._random.uniform(-25, 25),
        )
        targets = _plan(scene, length, wobble=self._random.normal(0, 1.5, 3))
        return self._frames(scene, targets, task)

    def _frames(self, scene: _Scene, targets: np.ndarray, task: str) -> Iterator[dict[str, Any]]:
        state = targets[0].copy()
        for action in targets:
            state += _FOLLOW * (action - state)
            _move_things(scene, state)
            yield {
                "observation.state": state.astype(np.float32),
                "action": action.astype(np.float32),
                "observation.images.front": self._front_view(scene, state),
                "observation.images.wrist": _wrist_view(scene, state),
                "task": task,
            }

    def _front_view(self, scene: _Scene, state: np.ndarray) -> np.ndarray:
        image = self._backdrop.copy()
        if scene.pushes:
            _bar(image, _pixel(_LINE, 0.0), _pixel(_LINE, -0.03), 2.5, _WHITE)
        points = [_pixel(*point) for point in _joint_points(state)]
        shadow = _pixel(_tip(state)[0], -0.012)
        _bar(image, (shadow[0] - 16, shadow[1]), (shadow[0] + 16, shadow[1]), 4, (120, 96, 74))
        colour = _BLUE if scene.pushes else _RED
        size = _HALF_CUBE * _PIXELS_PER_METRE
        centre = _pixel(scene.x, scene.height + _HALF_CUBE)
        _block(image, centre, size, colour)
        lid = centre[1] - size + 2.5
        _bar(image, (centre[0] - size + 2, lid), (centre[0] + size - 2, lid), 2, _LIDS[colour])
        foot, shoulder, elbow, wrist, tip = points
        _bar(image, (foot[0] - 14, foot[1] - 7), (foot[0] + 14, foot[1] - 7), 9, _DARK)
        _bar(image, foot, shoulder, 12, _DARK)
        _fingers(image, wrist, tip, opening=8 + 0.18 * float(state[5]))
        _bar(image, elbow, wrist, 7.5, _ORANGE)
        _bar(image, shoulder, elbow, 9.5, _ORANGE)
        for joint, radius in ((shoulder, 9.0), (elbow, 8.0), (wrist, 6.5)):
            _bar(image, joint, joint, radius, _DARK)
            _bar(image, joint, joint, radius * 0.4, _STEEL)
        return _interleaved(image)


def _plan(scene: _Scene, length: int, *, wobble: np.ndarray) -> np.ndarray:
    """Return the joint targets of every frame: smooth moves between a few poses."""
    x, aim = scene.x, math.degrees(math.atan2(scene.aside, scene.x))
    # Share of the episode, gripper tip across and up in metres, gripper opening.
    if scene.pushes:
        behind, done = x - 0.06, _LINE - _HALF_CUBE - _HALF_FINGERS
        poses = [(0.0, 0.12, 0.19, 60), (0.25, behind, 0.1, 5), (0.4, behind, 0.022, 5)]
        poses += [(0.8, done, 0.022, 5), (1.0, done - 0.06, 0.14, 40)]
    else:
        poses = [(0.0, 0.12, 0.19, 60), (0.28, x, 0.1, 90), (0.45, x, 0.022, 90)]
        poses += [(0.55, x, 0.022, 30), (0.85, x - 0.02, 0.16, 30), (1.0, x - 0.03, 0.16, 30)]
    when = np.array([pose[0] for pose in poses])
    joints = np.array(
        [_joints_for(across, up, aim, scene.turn, grip) for _, across, up, grip in poses]
    )
    joints[0, [0, 4]] = 0.0
    joints[-1, :3] += wobble  # no two episodes end in quite the same pose
    clock = np.linspace(0, 1, length) if length > 1 else np.zeros(length)
    leg = np.clip(np.searchsorted(when, clock, side="right") - 1, 0, len(when) - 2)
    share = (clock - when[leg]) / (when[leg + 1] - when[leg])
    eased = share**3 * (10 - 15 * share + 6 * share**2)
    targets: np.ndarray = joints[leg] + (joints[leg + 1] - joints[leg]) * eased[:, None]
    return targets


def _joints_for(across: float, up: float, pan: float, roll: float, grip: float) -> np.ndarray:
    """Return the joints that hold the gripper's tip there, pointing down, elbow high."""
    x, y = across, up + _HAND - _SHOULDER_HEIGHT
    reach = min(math.hypot(x, y), 0.999 * (_UPPER + _FORE))
    inner = (_UPPER**2 + reach**2 - _FORE**2) / (2 * _UPPER * reach)
    outer = (_UPPER**2 + _FORE**2 - reach**2) / (2 * _UPPER * _FORE)
    lift = math.degrees(math.atan2(y, x) + math.acos(inner))
    elbow = math.degrees(math.acos(outer)) - 180
    return np.array([pan, lift, elbow, -90 - lift - elbow, roll, grip])


def _joint_points(state: np.ndarray) -> list[Point]:
    """Return foot, shoulder, elbow, wrist and tip, in metres across and up."""
    points = [(0.0, 0.0), (0.0, _SHOULDER_HEIGHT)]
    angle = 0.0
    for joint, size in ((1, _UPPER), (2, _FORE), (3, _HAND)):
        angle += math.radians(float(state[joint]))
        x, y = points[-1]
        points.append((x + size * math.cos(angle), y + size * math.sin(angle)))
    return points


def _tip(state: np.ndarray) -> Point:
    return _joint_points(state)[-1]


def _move_things(scene: _Scene, state: np.ndarray) -> None:
    """Let the gripper carry the cube, or push the block."""
    x, y = _tip(state)
    if scene.pushes:
        if y < 2 * _HALF_CUBE:
            scene.x = max(scene.x, x + _HALF_CUBE + _HALF_FINGERS)
        return
    near = abs(x - scene.x) < _HALF_CUBE and y < 2 * _HALF_CUBE
    scene.held = (scene.held or near) and float(state[5]) < 45
    if scene.held:
        scene.x, scene.height = x, max(0.0, y - 0.02)
        scene.aside = x * math.tan(math.radians(float(state[0])))


def _wrist_view(scene: _Scene, state: np.ndarray) -> np.ndarray:
    """Look down past the fingers, from a camera that turns with the wrist."""
    height, width = WRIST_SIZE
    tip_x, tip_y = _tip(state)
    zoom = 160.0 / (0.08 + max(tip_y, 0.0))  # pixels per metre, fewer from higher up
    near = 160.0 / (0.08 + max(tip_y - scene.height, 0.0))
    turn = math.radians(float(state[4]))
    rows = np.arange(height, dtype=np.float32)[:, None] - height * 0.6
    columns = np.arange(width, dtype=np.float32)[None, :] - width / 2
    cos, sin = math.cos(turn), math.sin(turn)
    aside = tip_x * math.tan(math.radians(float(state[0])))
    across, along = columns * cos - rows * sin, columns * sin + rows * cos
    table_x, table_y = across / zoom + aside, tip_x - along / zoom
    grain = np.sin(table_x * 190 + table_y * 9) * 5 - np.float32(20) * (table_x % 0.07 < 0.001)
    image = np.empty((3, height, width), np.uint8)
    for plane, strength in zip(image, _WOOD, strict=True):
        plane[...] = grain + strength
    if scene.pushes:
        _blend(image, (np.abs(table_y - _LINE) - 0.004) * zoom, _WHITE)
    to_x, to_y = (scene.aside - aside) * near, (tip_x - scene.x) * near
    centre = (to_x * cos + to_y * sin + width / 2, to_y * cos - to_x * sin + height * 0.6)
    size, turned = _HALF_CUBE * near, math.radians(scene.turn) - turn
    colour = _BLUE if scene.pushes else _RED
    _block(image, centre, size + 2, (112, 88, 66), turn=turned)
    _block(image, centre, size, colour, turn=turned)
    _block(image, centre, 0.8 * size, _LIDS[colour], turn=turned)
    opening = 16 + 0.5 * float(state[5])
    for side in (-1, 1):
        column = width / 2 + side * opening
        _bar(image, (column, height * 0.42), (column, height + 12.0), 9, _DARK)
        inside = column - side * 5
        _bar(image, (inside, height * 0.42), (inside, height + 9.0), 3, _STEEL)
    return _interleaved(image)


def _front_backdrop() -> np.ndarray:
    """Draw what never moves: a wall in soft light and a wooden table."""
    height, width = FRONT_SIZE
    rows = np.arange(height, dtype=np.float32)[:, None]
    columns = np.arange(width, dtype=np.float32)[None, :]
    glow = 26 * np.exp(-(((columns - 220) / 150) ** 2) - ((rows - 60) / 110) ** 2)
    wall = np.array((176, 190, 200), np.float32)[:, None, None] + (glow - rows * 0.1)
    depth = np.clip((rows - _TABLE_ROW) / (height - _TABLE_ROW), 0, 1)
    grain = 4 * np.sin(columns / (9 + 8 * depth) + 3 * np.sin(rows / 5)) + 3 * np.sin(rows * 1.3)
    wood = np.array(_WOOD, np.float32)[:, None, None] + (grain - 34 * depth)
    image = np.where(rows >= _TABLE_ROW - 6, wood, wall)
    image[:, int(_TABLE_ROW) - 6 : int(_TABLE_ROW) - 4] += 24
    return np.asarray(np.clip(image, 0, 255), dtype=np.uint8)


def _interleaved(planes: np.ndarray) -> np.ndarray:
    """Return height x width x 3. Drawing works on planes: numpy is slow along an axis of 3."""
    image = np.empty((*planes.shape[1:], 3), np.uint8)
    for channel, plane in enumerate(planes):
        image[..., channel] = plane
    return image


def _pixel(across: float, up: float) -> Point:
    return _BASE_COLUMN + across * _PIXELS_PER_METRE, _TABLE_ROW - up * _PIXELS_PER_METRE


def _fingers(image: np.ndarray, wrist: Point, tip: Point, *, opening: float) -> None:
    along = np.subtract(tip, wrist) / max(1e-6, math.dist(tip, wrist))
    across = np.array((-along[1], along[0]))
    palm = np.add(wrist, along * 16)
    _bar(image, wrist, (palm[0], palm[1]), 6, _DARK)
    for side in (-1, 1):
        root, end = palm + side * opening * across, np.add(tip, side * opening * across)
        _bar(image, (palm[0], palm[1]), (root[0], root[1]), 4, _DARK)
        _bar(image, (root[0], root[1]), (end[0], end[1]), 3.2, _STEEL)


def _bar(image: np.ndarray, start: Point, stop: Point, radius: float, colour: Colour) -> None:
    """Draw a rounded bar, lit from above; a disc where start and stop are one."""
    part, columns, rows = _window(image, start, stop, radius + 1)
    if part.size == 0:
        return
    run, rise = stop[0] - start[0], stop[1] - start[1]
    from_x, from_y = columns - start[0], rows - start[1]
    share = np.clip((from_x * run + from_y * rise) / max(1e-6, run * run + rise * rise), 0, 1)
    off_x, off_y = from_x - share * run, from_y - share * rise
    light = 0.86 - 0.14 * np.clip(off_y / radius, -1, 1)  # 1 at most: bytes must not overflow
    _blend(part, np.hypot(off_x, off_y) - radius, colour, light=light)


def _block(
    image: np.ndarray, centre: Point, half: float, colour: Colour, *, turn: float = 0.0
) -> None:
    """Draw a square."""
    part, columns, rows = _window(image, centre, centre, 1.5 * half + 1)
    if part.size == 0:
        return
    x, y = columns - centre[0], rows - centre[1]
    cos, sin = math.cos(turn), math.sin(turn)
    _blend(part, np.maximum(np.abs(x * cos + y * sin), np.abs(y * cos - x * sin)) - half, colour)


def _window(
    image: np.ndarray, start: Point, stop: Point, margin: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the part of the image around two points, and its columns and rows."""
    left = max(0, math.floor(min(start[0], stop[0]) - margin))
    right = min(image.shape[2], math.ceil(max(start[0], stop[0]) + margin) + 1)
    top = max(0, math.floor(min(start[1], stop[1]) - margin))
    bottom = min(image.shape[1], math.ceil(max(start[1], stop[1]) + margin) + 1)
    columns = np.arange(left, max(left, right), dtype=np.float32)[None, :]
    rows = np.arange(top, max(top, bottom), dtype=np.float32)[:, None]
    return image[:, top:bottom, left:right], columns, rows


def _blend(
    part: np.ndarray, distance: np.ndarray, colour: Colour, *, light: np.ndarray | float = 1.0
) -> None:
    """Paint where ``distance`` is below 0, with an edge one pixel soft."""
    cover = np.subtract(0.5, distance, dtype=np.float32)
    np.maximum(cover, 0, out=cover)
    np.minimum(cover, 1, out=cover)
    for plane, strength in zip(part, colour, strict=True):
        plane[...] = plane + (strength * light - plane) * cover
