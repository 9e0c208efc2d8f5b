"""Defects of the movements. The dataset is made anew, so that nothing else is wrong with it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from support.defects.registry import defect
from support.moving import LENGTHS, Change, Columns, make_anew

ACTION, STATE = "action", "observation.state"


def _in_episode(number: int, changed: Callable[[Columns], Columns]) -> Change:
    def change(episode: int, columns: Columns) -> Columns:
        return changed(columns) if episode == number else columns

    return change


@defect("action-jump", on="v3-moves")
def action_leaps(root: Path) -> None:
    def leap(columns: Columns) -> Columns:
        columns[ACTION][30, 2] += 8
        return columns

    make_anew(root, change=_in_episode(3, leap))


@defect("state-lag", on="v3-moves")
def state_comes_late(root: Path) -> None:
    def late(episode: int, columns: Columns) -> Columns:
        frames = len(columns[STATE]) - 9
        return {
            key: values[:frames] if key == STATE else values[9:] for key, values in columns.items()
        }

    make_anew(root, change=late)


@defect("state-lag", on="v3-moves")
def state_comes_early(root: Path) -> None:
    def early(episode: int, columns: Columns) -> Columns:
        frames = len(columns[STATE]) - 9
        return {
            key: values[9:] if key == STATE else values[:frames] for key, values in columns.items()
        }

    make_anew(root, change=early)


@defect("state-offset", on="v3-moves")
def joint_calibrated_wrong(root: Path) -> None:
    def off(episode: int, columns: Columns) -> Columns:
        columns[STATE][:, 4] += 3
        return columns

    make_anew(root, change=off)


@defect("idle-head", on="v3-moves")
def long_wait_at_the_beginning(root: Path) -> None:
    def wait(columns: Columns) -> Columns:
        for key in (ACTION, STATE):
            columns[key][:38] = columns[key][38]
        return columns

    make_anew(root, change=_in_episode(2, wait))


@defect("idle-tail", on="v3-moves")
def long_wait_at_the_end(root: Path) -> None:
    def wait(columns: Columns) -> Columns:
        for key in (ACTION, STATE):
            columns[key][20:] = columns[key][20]
        return columns

    make_anew(root, change=_in_episode(2, wait))


@defect("episode-idle", on="v3-moves")
def operator_absent(root: Path) -> None:
    def rest(columns: Columns) -> Columns:
        for key in (ACTION, STATE):
            columns[key][:] = columns[key][0]
        return columns

    make_anew(root, change=_in_episode(5, rest))


@defect("episode-short", on="v3-moves")
def take_broken_off(root: Path) -> None:
    make_anew(root, lengths=(*LENGTHS[:8], 6, LENGTHS[9]))


@defect("episode-long", on="v3-moves")
def recorder_not_stopped(root: Path) -> None:
    make_anew(root, lengths=(*LENGTHS[:8], 640, LENGTHS[9]))


@defect("capture-gap", on="v3-moves")
def computer_was_busy(root: Path) -> None:
    def gap(columns: Columns) -> Columns:
        columns["capture_time_ns"][25:] += 900_000_000
        return columns

    make_anew(root, change=_in_episode(4, gap))


@defect("capture-gap", on="v3-moves")
def clock_was_set_back(root: Path) -> None:
    def back(columns: Columns) -> Columns:
        columns["capture_time_ns"][25:] -= 3_600_000_000_000
        return columns

    make_anew(root, change=_in_episode(4, back))


@defect("teleop-dropout", on="v3-moves")
def controls_lost_for_a_while(root: Path) -> None:
    def lost(columns: Columns) -> Columns:
        columns[ACTION][20:38] = columns[ACTION][20]
        return columns

    make_anew(root, change=_in_episode(6, lost))


@defect("teleop-dropout", on="v3-moves")
def controls_lost_without_a_state(root: Path) -> None:
    def lost(columns: Columns) -> Columns:
        columns[ACTION][20:38] = columns[ACTION][20]
        columns[ACTION][38:] += np.float32(2)
        columns[STATE][:] = columns[STATE][np.arange(len(columns[STATE])) % 7]
        return columns

    make_anew(root, change=_in_episode(6, lost))
