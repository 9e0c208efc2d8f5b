"""Episodes that are sealed before they are encoded: finished behind, or after the end of all."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap

import pytest

from demoreel.errors import ArgumentError, VideoError
from demoreel.media.settings import VideoSettings
from demoreel.record.encoding import CameraEncoders, recover_pending


def stop(encoders):
    for process in encoders.encoder_processes.values():
        os.kill(process, signal.SIGSTOP)


def go_on(encoders):
    for process in encoders.encoder_processes.values():
        os.kill(process, signal.SIGCONT)


def test_sealed_episodes_are_finished_in_order_while_the_next_is_recorded(tmp_path, filming):
    plans = [filming.camera("front"), filming.camera("wrist", 48, 96)]
    with CameraEncoders(plans, fps=30, workdir=tmp_path) as encoders:
        stop(encoders)
        pending = []
        for episode in range(3):
            filming.put(encoders, plans, episode, 10 + episode)
            pending.append(encoders.seal_episode(note={"episode": episode}))
            assert not pending[-1].is_finished
        filming.put(encoders, plans, 3, 4)
        go_on(encoders)
        filming.check(encoders.finish_episode(), plans, 3, 4)
        for episode, sealed in enumerate(pending):
            assert sealed.is_finished
            filming.check(sealed.wait(), plans, episode, 10 + episode)
            sealed.forget()
            assert not sealed.folder.exists()


@pytest.mark.parametrize("encoded", [0, 7])
@pytest.mark.soak
def test_sealed_episodes_outlive_everything(tmp_path, filming, encoded):
    plans = [filming.camera("front"), filming.camera("wrist", 48, 96)]
    work, saved = tmp_path / "work", tmp_path / "saved"
    with CameraEncoders(plans, fps=30, workdir=work) as encoders:
        filming.put(encoders, plans, 5, encoded)
        if encoded:
            filming.wait_until(lambda: encoders.backlog.frames_in_memory <= 2)
        stop(encoders)
        filming.put(encoders, plans, 5, 20, start=encoded)
        encoders.seal_episode(note={"rows": "of five"})
        filming.put(encoders, plans, 6, 3)
        shutil.copytree(work, saved)  # what a power cut at this instant would leave
        go_on(encoders)
    (sealed,) = recover_pending(saved)
    assert sealed.note == {"rows": "of five"}
    assert sealed.frames == {"front": 20 + encoded, "wrist": 20 + encoded}
    filming.check(sealed.finish(), plans, 5, 20 + encoded)
    filming.check(sealed.finish(), plans, 5, 20 + encoded)  # again, as after another kill
    with CameraEncoders(plans, fps=30, workdir=saved) as encoders:
        filming.put(encoders, plans, 7, 2)
        filming.check(encoders.finish_episode(), plans, 7, 2)
    assert [found.folder for found in recover_pending(saved)] == [sealed.folder]
    sealed.forget()
    assert recover_pending(saved) == []


SLOW_RECORDER = """
    import sys
    import numpy as np
    from pathlib import Path
    from demoreel.media.settings import VideoSettings
    from demoreel.record.encoding import CameraEncoders, CameraPlan
    from demoreel.testing.stamp import stamp

    slow = VideoSettings(codec="av1", preset=2, gop=8)
    plan = CameraPlan("front", 96, 128, "rgb", slow)
    encoders = CameraEncoders([plan], fps=30, workdir=Path(sys.argv[1]))
    for episode in range(3):
        for frame in range(12):
            picture = np.full(plan.shape, 90, np.uint8)
            stamp(picture, episode, frame)
            encoders.put("front", picture)
        if episode < 2:
            encoders.seal_episode(note={"episode": episode})
    print("sealed", flush=True)
    sys.stdin.read()
"""


def test_a_slow_codec_is_honoured_after_the_recorder_is_killed(tmp_path, filming):
    recorder = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(SLOW_RECORDER), str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert recorder.stdout is not None
    assert recorder.stdout.readline() == "sealed\n"
    recorder.kill()
    found = recover_pending(tmp_path)  # at once: its encoder may still be there
    plan = filming.camera("front", 96, 128, VideoSettings(codec="av1", preset=2, gop=8))
    assert [sealed.note["episode"] for sealed in found] == [0, 1]
    for episode, sealed in enumerate(found):
        filming.check(sealed.finish(), [plan], episode, 12)
    recorder.wait()


def test_an_encoder_that_is_killed_finishes_sealed_episodes_all_the_same(tmp_path, filming):
    plan = filming.camera()
    with CameraEncoders([plan], fps=30, workdir=tmp_path) as encoders:
        stop(encoders)
        filming.put(encoders, [plan], 0, 9)
        first = encoders.seal_episode()
        filming.put(encoders, [plan], 1, 8)
        second = encoders.seal_episode()
        os.kill(encoders.encoder_processes["front"], signal.SIGKILL)
        filming.check(first.wait(), [plan], 0, 9)
        filming.check(second.wait(), [plan], 1, 8)


def test_a_discarded_episode_does_not_touch_a_sealed_one(tmp_path, filming):
    plan = filming.camera()
    with CameraEncoders([plan], fps=30, workdir=tmp_path) as encoders:
        stop(encoders)
        filming.put(encoders, [plan], 0, 3)
        sealed = encoders.seal_episode()
        filming.put(encoders, [plan], 1, 3)
        encoders.discard_episode()
        go_on(encoders)
        filming.check(sealed.wait(), [plan], 0, 3)


def test_closing_leaves_sealed_episodes_to_be_recovered(tmp_path, filming):
    plan = filming.camera()
    encoders = CameraEncoders([plan], fps=30, workdir=tmp_path)
    stop(encoders)
    filming.put(encoders, [plan], 2, 6)
    pending = encoders.seal_episode()
    encoders.close()
    with pytest.raises(ArgumentError, match="closed"):
        pending.wait()
    (sealed,) = recover_pending(tmp_path)
    filming.check(sealed.finish(), [plan], 2, 6)


def test_a_damaged_manifest_or_picture_is_an_error(tmp_path, filming):
    plan = filming.camera()
    with CameraEncoders([plan], fps=30, workdir=tmp_path) as encoders:
        stop(encoders)
        filming.put(encoders, [plan], 2, 6)
        folder = encoders.seal_episode().folder
    (sealed,) = recover_pending(tmp_path)
    (raw,) = folder.glob("*.raw")
    os.truncate(raw, 100)
    with pytest.raises(OSError, match="cut short"):
        sealed.finish()
    manifest = folder / "sealed.json"
    manifest.write_text(json.dumps({"fps": 30}))
    with pytest.raises(VideoError, match="manifest"):
        recover_pending(tmp_path)


def test_nothing_is_sealed_of_an_episode_without_pictures(tmp_path, filming):
    with CameraEncoders([filming.camera()], fps=30, workdir=tmp_path) as encoders:
        with pytest.raises(ArgumentError, match="no pictures"):
            encoders.seal_episode()
        assert recover_pending(tmp_path) == []
