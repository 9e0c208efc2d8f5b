"""Datasets that are in an object store: the items of the local ones, by few requests."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import shutil
import subprocess
import sys
import threading
from concurrent.futures import ProcessPoolExecutor

import numpy as np
import pytest

import demoreel
from demoreel.errors import (
    ArgumentError,
    DatasetNotFoundError,
    MetadataError,
    TableError,
    VideoError,
)
from demoreel.testing import LayoutTests, make_dataset

from ..conftest import FAR_LENGTHS, LAYOUTS, assert_same_batch, with_an_episode_a_file

FRONT, SIDE = "observation.images.cam0", "observation.images.cam1"
PARQUET = ("v2.1", "v3.0")
INDICES = [0, 5, 5, 11, 30, -1, 20, 33]
QUERY = "select episode_index, count(*) c, max(index) m from frames group by 1 order by 1"

pytestmark = pytest.mark.filterwarnings("ignore:lance is not fork-safe")


# The same items as local


@pytest.mark.parametrize("layout", LAYOUTS)
def test_items_are_those_of_the_local_dataset(local_datasets, uploaded, layout):
    here, uri = demoreel.open(local_datasets(layout)), uploaded(layout)
    there = demoreel.open(uri)
    assert (there.layout, there.uri, len(there)) == (layout, uri, len(here))
    assert repr(there).startswith(f"<Dataset {uri}: {layout}, 4 episodes, 56 frames")
    assert_same_batch(there.batch(INDICES), here.batch(INDICES))
    assert_same_batch(there[:], here[:])
    for number in (0, 17, -1):
        assert_same_batch(there[number], here[number])


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    "options",
    [
        {"episodes": [3, 1], "windows": {"action": [0, 1, 7], FRONT: [-2, 0], "note": [-1, 0]}},
        {"cameras": [SIDE], "image_size": (32, 40)},
        {"filter": "frame_index > 13"},
    ],
    ids=["windows", "camera", "filter"],
)
def test_parts_of_it(local_datasets, uploaded, layout, options):
    here = demoreel.open(local_datasets(layout), **options)
    there = demoreel.open(uploaded(layout), **options)
    assert there.episodes.episode_index.tolist() == here.episodes.episode_index.tolist()
    assert_same_batch(there[::3], here[::3])


@pytest.mark.parametrize("layout", LAYOUTS)
def test_episodes_and_queries(local_datasets, uploaded, layout):
    here, there = demoreel.open(local_datasets(layout)), demoreel.open(uploaded(layout))
    assert there.sql(QUERY).equals(here.sql(QUERY))
    videos = "select * from videos order by all"
    assert there.sql(videos).equals(here.sql(videos))
    one, same = there.episode(2), here.episode(2)
    np.testing.assert_array_equal(one.column("action"), same.column("action"))
    assert one.column("note") == same.column("note")
    for got, wanted in zip(one.frames(FRONT, 3, 9), same.frames(FRONT, 3, 9), strict=True):
        np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize(
    "name",
    ["g1_v21", "g1_v30", "kitchen_images_v30", "g1_lance_video", "kitchen_lance_frames"],
)
def test_what_other_tools_wrote(fixtures, s3, proxy, name):
    here = demoreel.open(fixtures / name)
    there = demoreel.open(s3.upload(fixtures / name, f"of other tools/{name}"))
    numbers = np.random.default_rng(0).integers(0, len(here), 12)
    assert_same_batch(there.batch(numbers), here.batch(numbers))


def test_versions_and_tags(local_datasets, s3, proxy, tmp_path):
    # SeaweedFS hides folders named .versions, so the metadata of older versions are missing here.
    folder = shutil.copytree(local_datasets("lance-video"), tmp_path / "tagged")
    version = demoreel.open(folder).reader.tables["frames"].version
    demoreel.tag(folder, "before")
    uri = s3.upload(folder, "versions")
    for options in ({"version": version}, {"tag": "before"}):
        there, here = demoreel.open(uri, **options), demoreel.open(folder, **options)
        assert_same_batch(there[::7], here[::7])
    with pytest.raises(ArgumentError, match="no tag"):
        demoreel.open(uri, tag="after")
    with pytest.raises(ArgumentError, match="only Lance"):
        demoreel.open(s3.upload(local_datasets("v3.0"), "no versions"), version=1)


# Processes and threads


def _read(dataset, numbers):
    return dataset.batch(numbers)


@pytest.mark.parametrize(
    ("layout", "method"),
    [
        ("v3.0", "fork"),
        ("v2.1", "fork"),
        ("lance-video", "fork"),
        pytest.param("v3.0", "spawn", marks=pytest.mark.soak),
        pytest.param("lance-frames", "spawn", marks=pytest.mark.soak),
    ],
)
def test_processes_that_come_after_use(local_datasets, uploaded, layout, method, monkeypatch, s3):
    """With credentials that stand in no environment: a pool's workers inherit them."""
    options = {**s3.storage_options, "aws_endpoint": os.environ["AWS_ENDPOINT_URL"]}
    for name in s3.environment:
        monkeypatch.delenv(name)
    here = demoreel.open(local_datasets(layout))
    there = demoreel.open(uploaded(layout), storage_options=options)
    there.batch(INDICES)
    there.prefetch([1, 2, 3])  # which is under way when a child is forked
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context(method)) as pool:
        jobs = [pool.submit(_read, there, [7, 40, n]) for n in range(3)]
        for number, job in enumerate(jobs):
            assert_same_batch(job.result(timeout=120), here.batch([7, 40, number]))
    assert_same_batch(there.batch([1, 2, 3]), here.batch([1, 2, 3]))


def test_threads_and_two_datasets_at_once(local_datasets, uploaded):
    here = {layout: demoreel.open(local_datasets(layout)) for layout in ("v3.0", "lance-video")}
    there = {layout: demoreel.open(uploaded(layout)) for layout in here}
    wrong = []

    def read(layout, seed):
        numbers = np.random.default_rng(seed).integers(0, len(here[layout]), 8)
        try:
            assert_same_batch(there[layout].batch(numbers), here[layout].batch(numbers))
        except BaseException as error:
            wrong.append(error)

    threads = [
        threading.Thread(target=read, args=(layout, seed)) for layout in here for seed in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


# Requests


def asked(proxy, text):
    return [request for request in proxy.log if text in request.path]


def test_opening_asks_little_however_many_files(local_datasets, s3, uploaded, proxy):
    uri = uploaded("v2.1")
    prefix = uri.removeprefix(f"s3://{s3.bucket}/")
    for number in range(1100):
        s3.put(f"{prefix}/videos/chunk-000/{FRONT}/more_{number:05d}.mp4", b"x")
    proxy.reset()
    there = demoreel.open(uri)
    assert proxy.requests <= 20
    assert_same_batch(there[::5], demoreel.open(local_datasets("v2.1"))[::5])


@pytest.mark.parametrize("layout", PARQUET)
def test_second_batch_asks_nothing(uploaded, proxy, layout):
    there = demoreel.open(uploaded(layout))
    there.batch(INDICES)
    proxy.reset()
    there.batch(INDICES)
    assert proxy.requests == 0


def test_a_video_is_indexed_by_one_read(long_film, s3, proxy):
    there = demoreel.open(s3.upload(long_film, "long film"))
    proxy.reset()
    there[0]
    assert (
        len(asked(proxy, ".mp4")) <= 3
    )  # its table, for which two places are looked at, and the images
    proxy.reset()
    there[250]
    assert len(asked(proxy, ".mp4")) == 2
    proxy.reset()
    there[100]
    assert [len(asked(proxy, kind)) for kind in (".mp4", ".parquet")] == [1, 0]


def group_bytes(dataset, numbers):
    """Return the bytes of the GOPs that these samples are in."""
    groups = {}
    for number, position in zip(
        numbers, dataset.episodes.positions_of_rows(numbers).tolist(), strict=True
    ):
        clip = dataset.reader.clip(position, FRONT)
        frame = clip.frames(np.array([number - dataset.episodes.start[position]]))
        index = clip.video.index
        begin = index.starts(frame)[0]
        groups[clip.video.name, begin] = index.size[index.start_of == begin].sum()
    return sum(groups.values())


@pytest.mark.parametrize("layout", ["v3.0", "lance-video"])
def test_a_batch_fetches_little_more_than_its_images(long_film, s3, proxy, tmp_path, layout):
    folder = long_film
    if layout != "v3.0":
        folder = tmp_path / layout
        demoreel.convert(long_film, folder, to=layout)
    there = demoreel.open(s3.upload(folder, f"economy/{layout}"))
    there[0], there[-1]  # numbers, and where images are
    numbers = np.random.default_rng(2).choice(np.arange(10, 290), 32, replace=False)
    wanted = group_bytes(demoreel.open(long_film), numbers)
    proxy.reset()
    there.batch(numbers)
    assert asked(proxy, ".mp4" if layout == "v3.0" else ".blob")
    assert proxy.bytes <= 1.2 * wanted


@pytest.mark.parametrize(
    "layout", ["v3.0", "v2.1", pytest.param("lance-video", marks=pytest.mark.soak)]
)
@pytest.mark.soak
def test_a_second_process_finds_images_on_disk(local_datasets, uploaded, proxy, tmp_path, layout):
    program = (
        "import sys, demoreel\n"
        "demoreel.open(sys.argv[1], cache_dir=sys.argv[2], cache_size='10MB')[:]\n"
    )
    command = [sys.executable, "-c", program, uploaded(layout), str(tmp_path / "kept")]
    subprocess.run(command, check=True)
    assert asked(proxy, ".mp4") or asked(proxy, ".blob")
    proxy.reset()
    subprocess.run(command, check=True)
    assert not asked(proxy, ".mp4")
    if layout != "lance-video":
        assert not asked(proxy, "/data/")
        assert not asked(proxy, "/meta/")
    proxy.reset()
    for path in (tmp_path / "kept" / "ranges").rglob("*"):
        if path.is_file():
            path.write_bytes(path.read_bytes()[:-3])
    there = demoreel.open(command[-2], cache_dir=tmp_path / "kept", cache_size="10MB")
    assert_same_batch(there[:], demoreel.open(local_datasets(layout))[:])
    assert proxy.requests > 3


# What is not there, or damaged


def test_places_without_a_dataset(uploaded, s3, proxy):
    uri = uploaded("v3.0")
    parent = uri.rpartition("/")[0]
    with pytest.raises(DatasetNotFoundError, match=r"is it one of these\? .*/v3.0"):
        demoreel.open(parent)
    with pytest.raises(DatasetNotFoundError):
        demoreel.open(f"{uri}/nothing")
    for wrong in ("s3://", "ftp://host/x", "s3://key:secret@bucket/x"):
        with pytest.raises(ArgumentError):
            demoreel.open(wrong)


@pytest.mark.parametrize("layout", PARQUET)
@pytest.mark.parametrize(
    ("kind", "error"), [("data/", TableError), ("videos/", VideoError)], ids=["table", "video"]
)
def test_objects_that_were_always_cut_off(uploaded, s3, proxy, layout, kind, error):
    uri = uploaded(layout)
    prefix = uri.removeprefix(f"s3://{s3.bucket}/")
    name = next(key for key in s3.list(prefix) if f"/{kind}" in key)
    s3.put(name, s3.get(name)[:-100])
    with pytest.raises(error) as caught:
        demoreel.open(uri).batch(range(len(FAR_LENGTHS) * 9))
    assert name.removeprefix(f"{prefix}/") in str(caught.value)
    assert "demoreel cache" not in str(caught.value)


def test_metadata_that_are_no_json(uploaded, s3, proxy):
    uri = uploaded("v3.0")
    s3.put(f"{uri.removeprefix(f's3://{s3.bucket}/')}/meta/info.json", b'{"codebase_version": ')
    with pytest.raises(demoreel.errors.MetadataError, match=f"{uri}/meta/info.json"):
        demoreel.open(uri)


# The public suite


class RemoteLayoutTests(LayoutTests):
    """The conformance suite, with every dataset in a bucket."""

    @pytest.fixture(autouse=True, scope="class")
    @classmethod
    def _bucket(cls, s3, tmp_path_factory):
        with pytest.MonkeyPatch.context() as patch:
            for name, value in s3.environment.items():
                patch.setenv(name, value)
            patch.setenv("DEMOREEL_CACHE", str(tmp_path_factory.mktemp("cache")))
            cls.bucket = s3
            yield

    @classmethod
    def make(cls, path, **options):
        return cls.bucket.upload(super().make(path, **options), str(path)[1:])


@pytest.mark.soak
class TestV20(RemoteLayoutTests):
    layout = "v2.0"


@pytest.mark.soak
class TestV21(RemoteLayoutTests):
    layout = "v2.1"


@pytest.mark.soak
class TestV30(RemoteLayoutTests):
    layout = "v3.0"


class RemoteLanceTests(RemoteLayoutTests):
    @classmethod
    def make(cls, path, **options):
        made = path.with_name(f"{path.name}_lance")
        source = make_dataset(path.with_name(f"{path.name}_v30"), layout="v3.0", **options)
        demoreel.convert(source, made, to=cls.layout)
        return cls.bucket.upload(made, str(path)[1:])


@pytest.mark.soak
class TestLanceVideo(RemoteLanceTests):
    layout = "lance-video"


@pytest.mark.soak
class TestLanceFrames(RemoteLanceTests):
    layout = "lance-frames"


@pytest.mark.soak
class TestLanceNative(RemoteLanceTests):
    layout = "lance-native"


# Many files of metadata


@pytest.fixture(scope="module")
def many(tmp_path_factory):
    """Datasets whose metadata are many files, by layout."""
    home, lengths = tmp_path_factory.mktemp("many"), [2] * 24
    v3 = make_dataset(home / "v3.0", episodes=lengths)
    made = {"v3.0": v3}
    for layout in ("lance-video", "lance-frames"):
        demoreel.convert(v3, home / layout, to=layout, image_codec=None)
        made[layout] = home / layout
    return {layout: with_an_episode_a_file(folder) for layout, folder in made.items()}


@pytest.mark.parametrize("layout", ["v3.0", "lance-video", "lance-frames"])
def test_tables_of_episodes_come_when_they_are_wanted(many, s3, proxy, layout):
    uri, here = s3.upload(many[layout], f"episode tables/{layout}"), demoreel.open(many[layout])
    proxy.reset()
    there = demoreel.open(uri)
    assert (there.layout, there.info.total_episodes, dict(there.tasks)) == (
        layout,
        24,
        dict(here.tasks),
    )
    assert there.stats is not None
    assert proxy.requests <= 20
    assert not asked(proxy, "meta/episodes/chunk")
    assert len(there) == len(here)
    assert len(asked(proxy, "meta/episodes/chunk")) == 24
    assert_same_batch(there[::5], here[::5])
    proxy.reset()
    assert_same_batch(pickle.loads(pickle.dumps(there))[1::5], here[1::5])
    assert_same_batch(
        demoreel.open(uri, episodes=[3, 20])[:], demoreel.open(many[layout], episodes=[3, 20])[:]
    )
    assert not asked(proxy, "meta/episodes/chunk")


@pytest.mark.parametrize("method", ["fork", pytest.param("spawn", marks=pytest.mark.soak)])
def test_processes_that_want_them_first(many, s3, proxy, method):
    uri = s3.upload(many["v3.0"], f"episode tables/{method}")
    here, there = demoreel.open(many["v3.0"]), demoreel.open(uri)
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context(method)) as pool:
        jobs = [pool.submit(_read, there, [7, 40, n]) for n in range(3)]
        for number, job in enumerate(jobs):
            assert_same_batch(job.result(timeout=120), here.batch([7, 40, number]))


PLAN = """
import sys
from demoreel.edit.cut import load
print(len(load(sys.argv[1]).plan().clips))
"""


@pytest.mark.parametrize("layout", ["v3.0", "lance-video"])
def test_a_cut_list_of_them_on_another_machine(many, s3, proxy, layout, tmp_path, monkeypatch):
    uri = s3.upload(many[layout], f"episode tables/cut {layout}")
    demoreel.cut(uri).delete(3).save(tmp_path / "list.json")
    monkeypatch.setenv("DEMOREEL_CACHE", str(tmp_path / "cold"))
    command = [sys.executable, "-c", PLAN, str(tmp_path / "list.json")]
    assert subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout == b"23\n"


def test_a_table_of_episodes_that_is_broken_or_gone(many, s3, proxy):
    uri = s3.upload(many["v3.0"], "episode tables/broken")
    there, gone = demoreel.open(uri), demoreel.open(uri, cache_dir=None)
    name = "episode tables/broken/meta/episodes/chunk-000/file-011.parquet"
    s3.put(name, b"PAR1" + s3.get(name)[4:-4] + b"XXXX")
    with pytest.raises(demoreel.errors.ObjectChangedError, match="file-011"):
        len(there)
    with pytest.raises(MetadataError, match="cannot be read"):
        len(demoreel.open(uri))
    s3.delete(name)
    with pytest.raises(demoreel.errors.DemoreelError, match="file-011"):
        len(gone)
