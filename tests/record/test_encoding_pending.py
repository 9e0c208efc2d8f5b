"""Episodes that are persisted before they are encoded: finished behind, or after the end of all."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap

import pytest

from demoreel.errors import ArgumentError, MetadataError, VideoError
from demoreel.layouts.persisted import read_manifest
from demoreel.media.settings import VideoSettings
from demoreel.record.encoding.cameras import CameraEncoders
from demoreel.record.encoding.persist import clear_unsaved, finish_videos, forget


def recover_pending(workdir):
    return [read_manifest(folder) for folder in clear_unsaved(workdir)]


def stop(encoders):
    for process in encoders.encoder_processes.values():
        os.kill(process, signal.SIGSTOP)


def go_on(encoders):
    for process in encoders.encoder_processes.values():
        os.kill(process, signal.SIGCONT)


def test_persisted_episodes_are_finished_in_order_while_the_next_is_recorded(tmp_path, filming):
    plans = [filming.camera("front"), filming.camera("wrist", 48, 96)]
    with CameraEncoders(plans, fps=30, workdir=tmp_path) as encoders:
        stop(encoders)
        pending = []
        for episode in range(3):
            filming.put(encoders, plans, episode, 10 + episode)
            pending.append(encoders.persist_episode(note={"episode": episode}))
            assert not pending[-1].is_finished
        filming.put(encoders, plans, 3, 4)
        go_on(encoders)
        filming.check(encoders.finish_episode(), plans, 3, 4)
        for episode, persisted in enumerate(pending):
            assert persisted.is_finished
            filming.check(persisted.wait(), plans, episode, 10 + episode)
            forget(persisted.folder)
            assert not persisted.folder.exists()


@pytest.mark.parametrize("encoded", [0, 7])
@pytest.mark.soak
def test_persisted_episodes_outlive_everything(tmp_path, filming, encoded):
    plans = [filming.camera("front"), filming.camera("wrist", 48, 96)]
    work, saved = tmp_path / "work", tmp_path / "saved"
    with CameraEncoders(plans, fps=30, workdir=work) as encoders:
        filming.put(encoders, plans, 5, encoded)
        if encoded:
            filming.wait_until(lambda: encoders.backlog.frames_in_memory <= 2)
        stop(encoders)
        filming.put(encoders, plans, 5, 20, start=encoded)
        encoders.persist_episode(note={"rows": "of five"})
        filming.put(encoders, plans, 6, 3)
        shutil.copytree(work, saved)  # what a power cut at this instant would leave
        go_on(encoders)
    (persisted,) = recover_pending(saved)
    assert persisted.note == {"rows": "of five"}
    assert persisted.frames == {"front": 20 + encoded, "wrist": 20 + encoded}
    filming.check(finish_videos(persisted), plans, 5, 20 + encoded)
    filming.check(finish_videos(persisted), plans, 5, 20 + encoded)  # again, as after another kill
    with CameraEncoders(plans, fps=30, workdir=saved) as encoders:
        filming.put(encoders, plans, 7, 2)
        filming.check(encoders.finish_episode(), plans, 7, 2)
    assert [found.folder for found in recover_pending(saved)] == [persisted.folder]
    forget(persisted.folder)
    assert recover_pending(saved) == []


SLOW_RECORDER = """
    import sys
    import numpy as np
    from pathlib import Path
    from demoreel.media.settings import VideoSettings
    from demoreel.record.encoding.cameras import CameraEncoders
    from demoreel.record.encoding.plan import CameraPlan
    from demoreel.testing.stamp import stamp

    slow = VideoSettings(codec="av1", preset=2, gop=8)
    plan = CameraPlan("front", 96, 128, "rgb", slow)
    encoders = CameraEncoders([plan], fps=30, workdir=Path(sys.argv[1]))
    for episode in range(3):
        for frame in range(12):
            image = np.full(plan.shape, 90, np.uint8)
            stamp(image, episode, frame)
            encoders.put("front", image)
        if episode < 2:
            encoders.persist_episode(note={"episode": episode})
    print("persisted", flush=True)
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
    assert recorder.stdout.readline() == "persisted\n"
    recorder.kill()
    found = recover_pending(tmp_path)  # at once: its encoder may still be there
    plan = filming.camera("front", 96, 128, VideoSettings(codec="av1", preset=2, gop=8))
    assert [persisted.note["episode"] for persisted in found] == [0, 1]
    for episode, persisted in enumerate(found):
        filming.check(finish_videos(persisted), [plan], episode, 12)
    recorder.wait()


def test_encoder_options_in_a_manifest_are_checked(tmp_path, filming):
    work, saved, victim = tmp_path / "work", tmp_path / "saved", tmp_path / "bashrc"
    victim.write_text("mine")
    plan = filming.camera()
    with CameraEncoders([plan], fps=30, workdir=work) as encoders:
        stop(encoders)
        filming.put(encoders, [plan], 0, 2)
        encoders.persist_episode()
        shutil.copytree(work, saved)
        go_on(encoders)
    (manifest,) = saved.rglob("sealed.json")
    said = json.loads(manifest.read_text())
    said["cameras"][0]["settings"]["options"] = {"x264-params": f"dump-yuv={victim}"}
    manifest.write_text(json.dumps(said))
    (persisted,) = recover_pending(saved)
    with pytest.raises(MetadataError, match=r"(?s)dump-yuv.*sealed\.json"):
        finish_videos(persisted)
    assert victim.read_text() == "mine"


def test_an_encoder_that_is_killed_finishes_persisted_episodes_all_the_same(tmp_path, filming):
    plan = filming.camera()
    with CameraEncoders([plan], fps=30, workdir=tmp_path) as encoders:
        stop(encoders)
        filming.put(encoders, [plan], 0, 9)
        first = encoders.persist_episode()
        filming.put(encoders, [plan], 1, 8)
        second = encoders.persist_episode()
        os.kill(encoders.encoder_processes["front"], signal.SIGKILL)
        filming.check(first.wait(), [plan], 0, 9)
        filming.check(second.wait(), [plan], 1, 8)


def test_a_discarded_episode_does_not_touch_a_persisted_one(tmp_path, filming):
    plan = filming.camera()
    with CameraEncoders([plan], fps=30, workdir=tmp_path) as encoders:
        stop(encoders)
        filming.put(encoders, [plan], 0, 3)
        persisted = encoders.persist_episode()
        filming.put(encoders, [plan], 1, 3)
        encoders.discard_episode()
        go_on(encoders)
        filming.check(persisted.wait(), [plan], 0, 3)


def test_closing_leaves_persisted_episodes_to_be_recovered(tmp_path, filming):
    plan = filming.camera()
    encoders = CameraEncoders([plan], fps=30, workdir=tmp_path)
    stop(encoders)
    filming.put(encoders, [plan], 2, 6)
    pending = encoders.persist_episode()
    encoders.close()
    with pytest.raises(ArgumentError, match="closed"):
        pending.wait()
    (persisted,) = recover_pending(tmp_path)
    filming.check(finish_videos(persisted), [plan], 2, 6)


def test_what_was_encoded_when_it_was_persisted_stays_until_it_is_committed(tmp_path, filming):
    """Finished videos have no use for their packets; the manifest of a persisted episode has."""
    plan = filming.camera()
    with CameraEncoders([plan], fps=30, workdir=tmp_path) as encoders:
        filming.put(encoders, [plan], 0, 6)
        encoders.end_episode()
        buffer = encoders._buffers["front"]
        filming.wait_until(lambda: buffer.finished is not None)
        encoders.persist_episode()
        for episode in (1, 2):  # beginning one clears away what is left of those before
            filming.put(encoders, [plan], episode, 2)
            filming.check(encoders.finish_episode(), [plan], episode, 2)
    (persisted,) = recover_pending(tmp_path)
    assert persisted.cameras[0].safe == 6
    filming.check(finish_videos(persisted), [plan], 0, 6)


def test_a_damaged_manifest_or_image_is_an_error(tmp_path, filming):
    plan = filming.camera()
    with CameraEncoders([plan], fps=30, workdir=tmp_path) as encoders:
        stop(encoders)
        filming.put(encoders, [plan], 2, 6)
        folder = encoders.persist_episode().folder
    (persisted,) = recover_pending(tmp_path)
    (raw,) = folder.glob("*.raw")
    os.truncate(raw, 100)
    with pytest.raises(OSError, match="cut short"):
        finish_videos(persisted)
    with pytest.raises(VideoError, match="missing"):
        recover_pending(tmp_path)
    manifest = folder / "sealed.json"
    manifest.write_text(json.dumps({"fps": 30}))
    with pytest.raises(MetadataError, match="manifest"):
        recover_pending(tmp_path)


def test_nothing_is_persisted_of_an_episode_without_images(tmp_path, filming):
    with CameraEncoders([filming.camera()], fps=30, workdir=tmp_path) as encoders:
        with pytest.raises(ArgumentError, match="no frames"):
            encoders.persist_episode()
        assert recover_pending(tmp_path) == []
