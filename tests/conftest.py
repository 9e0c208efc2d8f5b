"""Shared fixtures: datasets written by other tools, and copies of them to break."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

from demoreel.errors import MissingExtraError
from demoreel.storage.external import for_one_command

if TYPE_CHECKING:
    from support.fault_proxy import FaultProxy
    from support.s3_server import S3Server

# How long an example takes says more about the machine than about the code.
settings.register_profile("demoreel", deadline=None)
settings.load_profile("demoreel")

# A shell that runs the tests in the background may ignore Ctrl-C, and programs inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

# The Hub's client reads this once, when a test imports it first. The tests' Hub has no Xet storage.
os.environ["HF_HUB_DISABLE_XET"] = "1"

# Of tests with many cases, `make test` runs every n-th case and `make soak` the others.
SAMPLED = {
    "check/test_lance.py": 2,
    "check/test_metadata.py": 2,
    "convert/test_run.py": 2,
    "layouts/test_lance_readers.py": 2,
    "layouts/test_remote_readers.py": 2,
    "layouts/test_strangers.py": 3,
    "media/test_colour.py": 2,
    "read/test_conditions.py": 3,
    "record/test_capture_times.py": 2,
    "repair/test_strangers.py": 3,
    "storage/remote/test_transfer.py": 2,
    "torch/test_episode_data.py": 2,
    "torch/test_lance_classes.py": 2,
    "view/test_draft.py": 4,
    "view/test_editing_faults.py": 4,
}

FIXTURES = Path(__file__).resolve().parents[2] / "shared" / "fixtures"


@pytest.hookimpl(tryfirst=True)  # before -m chooses
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    seen: Counter[tuple[str, str]] = Counter()
    for item in items:
        name = os.path.relpath(item.path, Path(__file__).parent)
        every = SAMPLED.get(name)
        if every is None or not hasattr(item, "callspec"):
            continue
        test = (name, item.nodeid.partition("[")[0])
        if seen[test] % every:
            item.add_marker("soak")
        seen[test] += 1


@pytest.fixture(scope="session", autouse=True)
def _own_state(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep what is noted for a user (``convert --link``) out of the home of who runs the tests."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        yield


@pytest.fixture(autouse=True)
def _allowed_for_one_test() -> Iterator[None]:
    """Let what a test allows to a dataset (``allow_external=``) end with the test."""
    with for_one_command():
        yield


@pytest.fixture(scope="session")
def fixtures() -> Path:
    """The datasets that real tools wrote; an outside user's checkout has none."""
    if not FIXTURES.is_dir():
        pytest.skip("../shared/fixtures is not there")
    return FIXTURES


@pytest.fixture
def copy_of(fixtures: Path, tmp_path: Path):
    """A function that copies a fixture to a folder that a test may damage."""

    def copy(name: str) -> Path:
        target = tmp_path / name
        shutil.copytree(fixtures / name, target)
        for path in target.rglob("*"):
            path.chmod(0o755 if path.is_dir() else 0o644)
        target.chmod(0o755)
        return target

    return copy


@pytest.fixture(scope="session")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """An S3 server that runs as long as the tests."""
    from support.s3_server import S3Server

    try:
        server = S3Server(tmp_path_factory.mktemp("s3"))
    except MissingExtraError as error:
        if sys.platform == "linux":
            raise
        pytest.skip(str(error))
    with server:
        yield server


@pytest.fixture(scope="session")
def proxy_of_all_tests(s3: S3Server) -> Iterator[FaultProxy]:
    """A proxy before the S3 server; tests use ``proxy``."""
    from support.fault_proxy import FaultProxy

    with FaultProxy(s3.endpoint) as proxy:
        yield proxy


@pytest.fixture
def proxy(
    s3: S3Server,
    proxy_of_all_tests: FaultProxy,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> FaultProxy:
    """A proxy to which this process's environment leads; nothing was read through it yet."""
    from demoreel.storage import cache
    from demoreel.storage.cache import ByteCache
    from demoreel.storage.remote import transfer

    for name, value in s3.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AWS_ENDPOINT_URL", proxy_of_all_tests.endpoint)
    monkeypatch.setenv("DEMOREEL_CACHE", str(tmp_path / "demoreel cache"))
    monkeypatch.setattr(transfer, "_FIRST_PAUSE_S", 0.005)
    monkeypatch.setattr(transfer, "_LONGEST_PAUSE_S", 0.02)
    monkeypatch.setattr(cache, "_memory", ByteCache(cache._MEMORY_BYTES))
    proxy_of_all_tests.clear()
    proxy_of_all_tests.reset()
    return proxy_of_all_tests


FAR_LENGTHS = [12, 9, 15, 20]
LAYOUTS = ("v2.0", "v2.1", "v3.0", "lance-video", "lance-frames", "lance-native")


@pytest.fixture(scope="session")
def local_datasets(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A function that returns a folder with a small dataset of a layout."""
    import demoreel
    from demoreel.testing import make_dataset

    folder = tmp_path_factory.mktemp("datasets")

    def of(layout: str) -> Path:
        target = folder / layout
        if not target.exists() and layout.startswith("lance"):
            demoreel.convert(of("v3.0"), target, to=layout)
        elif not target.exists():
            make_dataset(
                target,
                layout=layout,
                episodes=FAR_LENGTHS,
                cameras=2,
                gop=5,
                features={"note": {"dtype": "string", "shape": [1]}},
                tasks=("pick it", "放下"),
                data_files_size_in_mb=0.01,
                video_files_size_in_mb=0.01,
            )
        return target

    return of


@pytest.fixture(scope="session")
def long_film(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two videos that are larger than what is read of them at once."""
    from demoreel.testing import make_dataset

    return make_dataset(
        tmp_path_factory.mktemp("film") / "v3.0",
        episodes=[150, 150],
        cameras={"observation.images.cam0": (240, 320)},
        gop=10,
        crf=1,
        video_files_size_in_mb=0.2,
    )


@pytest.fixture
def uploaded(
    s3: S3Server, proxy: FaultProxy, local_datasets: Callable[[str], Path]
) -> Callable[[str], str]:
    """A function that puts a small dataset of a layout into the bucket, and returns its URI."""

    def put(layout: str) -> str:
        return s3.upload(local_datasets(layout), f"{uuid.uuid4().hex[:8]}/{layout}")

    return put


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """A function that mounts a disk of a size (``"2m"``) in memory and returns its folder."""
    folders = []

    def mount(size: str) -> Path:
        folder = tmp_path / f"disk-{len(folders)}"
        folder.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
        if subprocess.run(command, capture_output=True, check=False).returncode:
            pytest.skip("this user may not mount a disk")
        folders.append(folder)
        return folder

    yield mount
    for folder in folders:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def assert_same(left, right):
    """Assert that two items hold the same: keys, dtypes, values."""
    import torch

    assert set(left) == set(right)
    for key, value in right.items():
        if isinstance(value, torch.Tensor):
            assert left[key].dtype == value.dtype, key
            assert torch.equal(left[key], value), key
        else:
            assert left[key] == value, key


def assert_same_batch(left, right):
    """Assert that two batches of arrays are the same, bit for bit."""
    import numpy as np

    assert list(left) == list(right)
    for key, column in right.items():
        if isinstance(column, np.ndarray):
            assert left[key].dtype == column.dtype, key
            np.testing.assert_array_equal(left[key], column, err_msg=key)
        else:
            assert left[key] == column, key


def with_an_episode_a_file(folder: Path) -> Path:
    """Divide a dataset's table of episodes into a file for each episode."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    first = folder / "meta/episodes/chunk-000/file-000.parquet"
    table = pq.read_table(first)
    place = table.schema.get_field_index("meta/episodes/file_index")
    for number in range(table.num_rows):
        index = pa.array([number])
        row = table.slice(number, 1).set_column(place, "meta/episodes/file_index", index)
        pq.write_table(row, first.with_name(f"file-{number:03d}.parquet"))
    return folder
