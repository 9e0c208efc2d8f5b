import numpy as np
import pytest

from demoreel.errors import ArgumentError, UnknownKeyError
from demoreel.testing.toy_arm import JOINTS, PICK, PUSH, TASKS, ToyArm

FRONT, WRIST = "observation.images.front", "observation.images.wrist"


def red(image):
    """Rows and columns of the red cube's pixels."""
    r, g, b = (image[..., channel].astype(int) for channel in range(3))
    return np.argwhere((r > 150) & (g < 110) & (b < 110))


def blue(image):
    r, g, b = (image[..., channel].astype(int) for channel in range(3))
    return np.argwhere((b > 150) & (r < 110) & (g < 150))


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("length", [1, 2, 50])
def test_frames_have_the_promised_form(task, length):
    frames = list(ToyArm(1).episode(task, length))
    assert len(frames) == length
    for frame in frames:
        assert set(frame) == {"observation.state", "action", FRONT, WRIST, "task"}
        assert frame["task"] == task
        for key in ("observation.state", "action"):
            assert frame[key].shape == (len(JOINTS),)
            assert frame[key].dtype == np.float32
        assert (frame[FRONT].shape, frame[FRONT].dtype) == ((240, 320, 3), np.uint8)
        assert (frame[WRIST].shape, frame[WRIST].dtype) == ((120, 160, 3), np.uint8)


@pytest.mark.parametrize("task", TASKS)
def test_motion_is_smooth_and_the_action_leads(task):
    frames = list(ToyArm(2).episode(task, 90))
    states = np.array([frame["observation.state"] for frame in frames])
    actions = np.array([frame["action"] for frame in frames])
    assert np.abs(np.diff(states, axis=0)).max() < 15  # degrees in a frame
    assert np.abs(np.diff(states, n=2, axis=0)).max() < 5
    now = np.abs(states - actions).mean()
    later = np.abs(states[1:] - actions[:-1]).mean()
    assert later < now


def test_the_cube_is_lifted():
    for seed in range(5):
        frames = list(ToyArm(seed).episode(PICK, 60))
        first, last = (red(frame[FRONT]) for frame in (frames[0], frames[-1]))
        assert len(first) > 100
        assert last[:, 0].mean() < first[:, 0].mean() - 40


def test_the_block_reaches_the_line():
    for seed in range(5):
        frames = list(ToyArm(seed).episode(PUSH, 60))
        first, last = (blue(frame[FRONT]) for frame in (frames[0], frames[-1]))
        line = 84 + 0.30 * 560
        assert first[:, 1].mean() < line - 40
        assert abs(last[:, 1].mean() - line) < 3
        assert abs(last[:, 0].mean() - first[:, 0].mean()) < 2  # it stays on the table


def test_the_wrist_camera_comes_close():
    frames = list(ToyArm(0).episode(PICK, 60))
    assert len(red(frames[30][WRIST])) > 4 * len(red(frames[0][WRIST])) > 0


def test_arms_with_one_seed_do_the_same_and_never_twice():
    one, two, other = ToyArm(7), ToyArm(7), ToyArm(8)
    for task in (PICK, PUSH, PICK):
        a, b, c = (list(arm.episode(task, 12)) for arm in (one, two, other))
        for key in ("observation.state", "action", FRONT, WRIST):
            assert all(np.array_equal(x[key], y[key]) for x, y in zip(a, b, strict=True))
        assert not np.array_equal(a[-1]["action"], c[-1]["action"])
    again = [list(one.episode(PICK, 12))[-1]["action"] for _ in range(2)]
    assert not np.array_equal(*again)


def test_every_frame_is_the_callers_to_keep():
    frames = list(ToyArm(3).episode(PICK, 30))
    images = {frame[FRONT].tobytes() for frame in frames}
    assert len(images) == 30


def test_wrong_arguments_are_refused():
    with pytest.raises(UnknownKeyError, match="did you mean 'pick the red cube'"):
        ToyArm().episode("pick a red cube", 10)
    with pytest.raises(ArgumentError, match="at least one"):
        ToyArm().episode(PICK, 0)
