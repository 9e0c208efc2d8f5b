"""demoreel, lerobot and lerobot-lancedb on one S3 server: what either reads from there.

The server is SeaweedFS, on loopback. lerobot itself reads from no object store, so its training
runs on demoreel's datasets here; lerobot-lancedb opens the same URIs as demoreel.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from asking_lerobot import FIXTURES, Answers, Asked, same_as_answered

import demoreel
from demoreel.testing import make_dataset
from demoreel.torch import LeRobotDataset, LeRobotLanceVideoDataset
from support.s3_server import S3Server

FRONT, WRIST = "observation.images.front", "observation.images.wrist"
CASES = {
    "by_demoreel": {
        "return_uint8": True,
        "delta_timestamps": {FRONT: [-0.1, 0.0, 0.1], "action": [0.0, 0.1]},
    },
    "g1_lance_native": {"return_uint8": True, "episodes": [1, 3]},
}


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """A server to which this process's environment leads."""
    folder = tmp_path_factory.mktemp("s3")
    with S3Server(folder / "server") as server, pytest.MonkeyPatch.context() as patch:
        for name, value in server.environment.items():
            patch.setenv(name, value)
        patch.setenv("AWS_ALLOW_HTTP", "true")  # lancedb's own word for it
        patch.setenv("DEMOREEL_CACHE", str(folder / "cache"))
        yield server


# ── lerobot-train ─────────────────────────────────────────────────────────────────────────────────


def test_training_from_the_store_gives_the_losses_of_local_data(
    s3: S3Server,
    train: Callable[..., list[tuple[str, ...]]],
    losses_of_lerobot: list[tuple[str, ...]],
) -> None:
    uri = s3.upload(FIXTURES / "g1_v30", "g1_v30")
    assert train(uri, workers=1) == losses_of_lerobot


# ── lerobot-lancedb ───────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def roots(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Datasets that demoreel and lerobot-lancedb have converted to lance-native, by name."""
    folder = tmp_path_factory.mktemp("lance")
    make_dataset(
        folder / "v3.0",
        episodes=[5, 23, 1, 12],
        cameras={FRONT: (96, 128), WRIST: (64, 80)},
        fps=10,
        gop=6,
        video_files_size_in_mb=0.01,
        tasks=["push the block", "抓起杯子"],
    )
    demoreel.convert(folder / "v3.0", folder / "native", to="lance-native")
    return {"by_demoreel": folder / "native", "g1_lance_native": FIXTURES / "g1_lance_native"}


@pytest.fixture(scope="module")
def uris(s3: S3Server, roots: dict[str, Path]) -> dict[str, str]:
    return {name: s3.upload(root, name) for name, root in roots.items() if root.is_dir()}


@pytest.fixture(scope="module")
def answers(
    lancedb_python: str, uris: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Answers]:
    """What lerobot-lancedb reads from the store."""
    jobs = {
        name: {
            "do": "read_lance",
            "root": uri,
            "kwargs": CASES[name],
            "indices": {"step": 1 if name == "by_demoreel" else 61},
        }
        for name, uri in uris.items()
    }
    home = {"HF_HOME": str(tmp_path_factory.mktemp("lancedb")), "HF_HUB_OFFLINE": "1"}
    return Asked(lancedb_python, jobs, home).answers()


@pytest.mark.parametrize("opened_with", [LeRobotDataset, LeRobotLanceVideoDataset])
@pytest.mark.parametrize("name", CASES)
def test_lerobot_lancedb_and_demoreel_read_the_same(
    uris: dict[str, str],
    answers: dict[str, Answers],
    name: str,
    opened_with: Callable[..., LeRobotDataset],
) -> None:
    if name not in uris:
        pytest.skip(f"{FIXTURES / name} does not exist")
    same_as_answered(opened_with(uris[name], **CASES[name]), answers[name])


@pytest.mark.parametrize("name", CASES)
def test_the_same_from_a_folder(
    roots: dict[str, Path], answers: dict[str, Answers], name: str
) -> None:
    if name not in answers:
        pytest.skip(f"{FIXTURES / name} does not exist")
    same_as_answered(LeRobotDataset("me/x", roots[name], **CASES[name]), answers[name])
