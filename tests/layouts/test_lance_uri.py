"""Tables in an object store, read where they are: a real S3 server, on this machine."""

from __future__ import annotations

import logging
import pickle
import shutil
import traceback

import numpy as np
import pytest
from torch.utils.data import DataLoader, Subset

import demoreel
from demoreel.errors import (
    ArgumentError,
    DatasetNotFoundError,
    TableError,
    UnsafePathError,
    VideoError,
)
from demoreel.read.dataset import Dataset
from demoreel.storage.place import RemotePlace, remote_place, said_of_store
from demoreel.testing import make_dataset
from demoreel.torch import LeRobotLanceDataset, LeRobotLanceVideoDataset
from support.fault_proxy import FaultProxy

from ..conftest import assert_same

pytestmark = [
    pytest.mark.soak,
    pytest.mark.filterwarnings("ignore:decode_device='auto'"),
    pytest.mark.filterwarnings("ignore:lance is not fork-safe"),
]

CAMERA = "observation.images.cam0"
WINDOWS = {CAMERA: [-1 / 30, 0.0], "action": [0.0, 1 / 30, 2 / 30]}
LAYOUTS = {"lance-video": "dataset", "lance-native": "frames", "lance-frames": "dataset"}


@pytest.fixture(scope="module")
def local(tmp_path_factory):
    """The same dataset in each layout, on this machine."""
    folder = tmp_path_factory.mktemp("local")
    source = make_dataset(
        folder / "source",
        episodes=[12, 9, 15],
        features={"note": {"dtype": "string", "shape": [1]}},
        tasks=("pick it", "放下"),
        video_files_size_in_mb=0.01,
    )
    for layout in LAYOUTS:
        demoreel.convert(source, folder / layout, to=layout, table_name=_name(layout))
    return folder


def _name(layout):
    return None if layout == "lance-native" else LAYOUTS[layout]


@pytest.fixture(scope="module")
def places(local, bucket):
    """The URI of each layout's table of rows."""
    return {
        layout: f"{bucket.upload(local / layout, f'some folder/{layout}')}/{name}.lance"
        for layout, name in LAYOUTS.items()
    }


@pytest.fixture
def with_credentials(bucket, monkeypatch):
    for name, value in bucket.environment.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def homes(local, tmp_path):
    """For each layout a folder with its meta/, and nothing else."""
    for layout in LAYOUTS:
        shutil.copytree(local / layout / "meta", tmp_path / layout / "meta")
    return tmp_path


def class_of(layout):
    return LeRobotLanceDataset if layout == "lance-frames" else LeRobotLanceVideoDataset


# Items


@pytest.mark.usefixtures("with_credentials")
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"delta_timestamps": WINDOWS, "return_uint8": True},
        {"episodes": [2, 0]},
        {"episode_filter": lambda row: row["length"] > 10},
        {"version": 1},
    ],
    ids=["all", "windows", "episodes", "filtered", "version"],
)
def test_items_are_those_of_the_local_tables(local, places, homes, layout, options):
    kind = class_of(layout)
    if "version" in options:
        options = {"version": kind(root=local / layout).reader.reader.tables["frames"].version}
    here = kind(root=local / layout, **options)
    there = kind(uri=places[layout], meta_root=homes / layout, **options)
    assert there.reader.layout == layout
    assert there.root == homes / layout
    assert len(there) == len(here)
    indices = [0, 5, 5, 11, len(here) - 1, -4]
    for got, wanted in zip(there.__getitems__(indices), here.__getitems__(indices), strict=True):
        assert_same(got, wanted)


@pytest.mark.usefixtures("with_credentials")
@pytest.mark.parametrize(
    ("name", "table"),
    [("g1_lance_video", "g1"), ("g1_lance_native", "frames"), ("kitchen_lance_frames", "kitchen")],
)
def test_tables_that_other_tools_wrote(fixtures, bucket, name, table):
    uri = f"{bucket.upload(fixtures / name, name)}/{table}.lance"
    kind = LeRobotLanceDataset if "frames" in name else LeRobotLanceVideoDataset
    here = kind(root=fixtures / name)
    there = kind(uri=uri, meta_root=fixtures / name)
    assert there.reader.layout == here.reader.layout
    for index in (0, 100, len(here) - 1):
        assert_same(there[index], here[index])


@pytest.mark.usefixtures("with_credentials")
def test_native_without_a_word_of_it_in_the_metadata(local, places, homes):
    """As the first version of the tool wrote it."""
    path = homes / "lance-native" / "meta" / "info.json"
    path.write_text(path.read_text().replace('"storage_format"', '"something"'))
    there = LeRobotLanceVideoDataset(uri=places["lance-native"], meta_root=homes / "lance-native")
    assert there.reader.layout == "lance-native"
    assert_same(there[3], LeRobotLanceVideoDataset(root=local / "lance-native")[3])


@pytest.mark.usefixtures("with_credentials")
def test_queries(local, places, homes):
    tables = remote_place(places["lance-video"])
    there = Dataset(homes / "lance-video", tables=tables, filter="frame_index > 11")
    assert there.episodes.episode_index.tolist() == [2]
    counted = "select episode_index, count(*) from frames group by 1 order by 1"
    every = Dataset(homes / "lance-video", tables=tables)
    assert every.sql(counted).equals(demoreel.open(local / "lance-video").sql(counted))


def test_videos_that_stayed_on_this_machine(local, bucket, tmp_path):
    linked = tmp_path / "linked"
    demoreel.convert(local / "source", linked, to="lance-video", link=True, table_name="dataset")
    uri = f"{bucket.upload(linked, 'linked')}/dataset.lance"
    options = {"uri": uri, "meta_root": linked, "storage_options": bucket.storage_options}
    with pytest.raises(UnsafePathError, match="allow_external"):
        LeRobotLanceVideoDataset(**options)[0]
    there = LeRobotLanceVideoDataset(**options, allow_external=local / "source")
    here = LeRobotLanceVideoDataset(root=local / "lance-video")
    for index in (0, 20):
        assert_same(there[index], here[index])


# Workers


@pytest.mark.usefixtures("with_credentials")
@pytest.mark.parametrize(
    ("layout", "method"),
    [("lance-video", "fork"), ("lance-video", "spawn"), ("lance-frames", "fork")],
)
def test_workers(bucket, places, homes, layout, method, monkeypatch):
    options = {}
    if layout == "lance-frames":  # credentials that a helper cannot find in its environment
        options = {"storage_options": bucket.storage_options}
        for name in bucket.environment:
            monkeypatch.delenv(name)
    there = class_of(layout)(
        uri=places[layout], meta_root=homes / layout, return_uint8=True, **options
    )
    indices = [30, 2, 17, 2, 25, 9, 33, 0]
    wanted = there.__getitems__(indices)
    workers = 2 if method == "fork" else 1  # each imports torch again
    loader = DataLoader(
        Subset(there, indices), batch_size=4, num_workers=workers, multiprocessing_context=method
    )
    for number, batch in enumerate(loader):
        for place in range(4):
            got = {key: value[place] for key, value in batch.items()}
            assert_same(got, wanted[4 * number + place])


# Credentials


@pytest.mark.parametrize("way", ["storage_options", "connect_kwargs"])
def test_options_given_for_one_table(local, bucket, places, homes, way):
    options = bucket.storage_options
    given = {way: options if way == "storage_options" else {"storage_options": options}}
    there = LeRobotLanceVideoDataset(
        uri=places["lance-video"], meta_root=homes / "lance-video", **given
    )
    here = LeRobotLanceVideoDataset(root=local / "lance-video")
    assert_same(there[7], here[7])
    again = pickle.loads(pickle.dumps(there))
    assert_same(again[8], here[8])
    assert bucket.storage_options["aws_secret_access_key"] not in repr(vars(there))
    assert bucket.storage_options["aws_secret_access_key"] not in repr(vars(there.reader))


@pytest.mark.usefixtures("with_credentials")
def test_credentials_of_the_environment_are_not_pickled(bucket, places, homes):
    there = LeRobotLanceVideoDataset(uri=places["lance-video"], meta_root=homes / "lance-video")
    there[0]
    for value in bucket.storage_options.values():
        assert value.encode() not in pickle.dumps(there)


def everything_said(error):
    """Return what anyone could print of an error and of those that led to it."""
    said = "".join(traceback.format_exception(error))
    while error is not None:
        said += f"{error!r} {error} {error.args} {vars(error)}"
        assert isinstance(error, Exception)
        said += repr(pickle.dumps(error))
        error = error.__cause__ or error.__context__
    return said


@pytest.mark.parametrize(
    ("way", "wrong"),
    [("environment", "aws_secret_access_key"), ("storage_options", "aws_access_key_id")],
)
def test_wrong_credentials(bucket, places, homes, monkeypatch, caplog, capfd, way, wrong):
    caplog.set_level(logging.DEBUG)
    options = {**bucket.storage_options, wrong: "WRONG-BUT-PRIVATE", "aws_session_token": "TOKEN!"}
    if way == "environment":
        names = {"aws_endpoint": "AWS_ENDPOINT_URL"}
        for name, value in options.items():
            monkeypatch.setenv(names.get(name, name.upper()), value)
    given = {way: options} if way == "storage_options" else {}
    with pytest.raises(TableError, match="403 Forbidden") as caught:
        LeRobotLanceVideoDataset(
            uri=places["lance-video"], meta_root=homes / "lance-video", **given
        )
    assert caught.value.where["table"] == places["lance-video"]
    assert "credentials" in caught.value.hint
    said = everything_said(caught.value) + caplog.text + "".join(capfd.readouterr())
    for name in ("aws_access_key_id", "aws_secret_access_key", "aws_session_token"):
        assert options[name] not in said


def test_what_a_store_says_is_shown_without_keys(monkeypatch):
    monkeypatch.setenv("AWS_SESSION_TOKEN", "of-the-environment")
    place = remote_place("s3://b/t.lance", {"AWS_Access_Key_Id": "AKIDMINE"})
    assert "AKIDMINE" not in repr(place) + str(place)
    answer = (
        "Generic S3 error: Error performing GET https://h/b?X-Amz-Signature=abc in 1ms - "
        "Server returned non-2xx status code: 403 Forbidden: <?xml version='1.0'?>\n"
        "<Error><Code>InvalidAccessKeyId</Code><AWSAccessKeyId>AKIDMINE</AWSAccessKeyId></Error>"
    )
    assert said_of_store(answer, place) == "the store answered 403 Forbidden, InvalidAccessKeyId"
    strange = "GET https://h/b?sig=abc failed for AKIDMINE with of-the-environment"
    assert said_of_store(strange, place) == "GET https://h/b failed for *** with ***"


# What is refused


@pytest.mark.usefixtures("with_credentials")
def test_no_such_table(places, homes):
    for layout, uri in places.items():
        missing = uri.replace(f"{LAYOUTS[layout]}.lance", "other.lance")
        with pytest.raises(DatasetNotFoundError, match=r"no Lance table 'other\.lance'") as caught:
            class_of(layout)(uri=missing, meta_root=homes / layout)
        assert str(caught.value.where["uri"]) == missing


@pytest.mark.usefixtures("with_credentials")
def test_videos_that_are_not_there(local, bucket, homes):
    shutil.copytree(local / "lance-video" / "dataset.lance", homes / "half" / "dataset.lance")
    uri = f"{bucket.upload(homes / 'half', 'half')}/dataset.lance"
    there = LeRobotLanceVideoDataset(uri=uri, meta_root=homes / "lance-video")
    with pytest.raises((TableError, VideoError), match="was not found") as caught:
        there[0]
    assert "s3://robots/half/dataset_videos.lance" in str(caught.value)


@pytest.mark.usefixtures("with_credentials")
def test_bytes_that_are_not_there(local, bucket, homes):
    folder = homes / "hollow"
    for name in ("dataset.lance", "dataset_videos.lance"):
        shutil.copytree(local / "lance-video" / name, folder / name)
    for path in (folder / "dataset_videos.lance").rglob("*.blob"):
        path.unlink()
    uri = f"{bucket.upload(folder, 'hollow')}/dataset.lance"
    there = LeRobotLanceVideoDataset(uri=uri, meta_root=homes / "lance-video")
    with pytest.raises(VideoError, match="cannot be read from their table") as caught:
        there.__getitems__([0, 20])
    assert "s3://robots/hollow/dataset_videos.lance#" in caught.value.where["file"]
    assert caught.value.where["camera"] == CAMERA


@pytest.mark.usefixtures("with_credentials")
def test_the_wrong_class_names_the_right_one(places, homes):
    with pytest.raises(ArgumentError, match=r"use demoreel\.torch\.LeRobotLanceDataset$"):
        LeRobotLanceVideoDataset(uri=places["lance-frames"], meta_root=homes / "lance-frames")
    with pytest.raises(ArgumentError, match=r"use demoreel\.torch\.LeRobotLanceVideoDataset$"):
        LeRobotLanceDataset(uri=places["lance-video"], meta_root=homes / "lance-video")


@pytest.mark.usefixtures("with_credentials")
def test_a_folder_and_the_name_of_its_table(places, homes):
    uri, home = places["lance-video"].removesuffix("/dataset.lance"), homes / "lance-video"
    there = LeRobotLanceVideoDataset(uri=f"{uri}/", table_name="dataset", meta_root=home)
    assert there[0]["index"].item() == 0
    with pytest.raises(ArgumentError, match="names no table"):
        LeRobotLanceVideoDataset(uri=uri, meta_root=home)
    with pytest.raises(ArgumentError, match="table_name='x' is not"):
        LeRobotLanceVideoDataset(uri=places["lance-video"], table_name="x", meta_root=home)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"uri": "s3://KEY:HUSH@b/g1.lance", "meta_root": "."}, "nothing else"),
        ({"uri": "az://b/g1.lance?sig=HUSH", "meta_root": "."}, "nothing else"),
        ({"uri": "gs:///g1.lance", "meta_root": "."}, "nothing else"),
        ({"uri": "hf://me/g1.lance"}, "no place on the Hub"),
        ({"uri": "ftp://me/g1.lance"}, "not read from ftp://"),
        (
            {"uri": "s3://b/g1.lance", "meta_root": ".", "storage_options": {"k": ["HUSH"]}},
            "must be text",
        ),
    ],
)
def test_arguments_that_make_no_sense(options, words):
    with pytest.raises(ArgumentError, match=words) as caught:
        LeRobotLanceVideoDataset(**options)
    assert "HUSH" not in str(caught.value)


def test_what_lance_is_told(monkeypatch):
    for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)
    plain = remote_place("s3://b/t.lance/")
    assert plain == RemotePlace("s3://b/t.lance")
    assert plain.storage_options() is None
    given = remote_place("s3://b/t.lance", {"AWS_ENDPOINT": "http://h", "aws_skip_signature": True})
    assert given.storage_options() == {
        "aws_endpoint": "http://h",
        "aws_skip_signature": "true",
        "allow_http": "true",
    }
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://localhost:9000")
    assert plain.storage_options() == {"allow_http": "true"}
    assert remote_place("gs://b/t.lance").storage_options() is None
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "https://h")
    assert plain.storage_options() is None


# Bytes


@pytest.fixture
def counter(bucket, monkeypatch):
    """Counts the bytes that the S3 server answers."""
    with FaultProxy(bucket.endpoint) as proxy:
        for name, value in bucket.environment.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.endpoint)
        yield proxy


def whole_groups(ds, camera, rows):
    """Return the size of the GOPs, keyframe to keyframe, that the rows are in."""
    episodes = ds.reader.episodes
    sizes = {}
    for row in rows:
        position = int(episodes.positions_of_rows(np.array([row]))[0])
        clip = ds.reader.clip(position, camera)
        index = clip.video.index
        first = int(index.starts([row - int(episodes.start[position]) + clip.first])[0])
        sizes[clip.video.name, first] = int(index.size[index.start_of == first].sum())
    return sum(sizes.values())


@pytest.mark.parametrize("layout", ["lance-video", "lance-native"])
def test_a_batch_reads_the_bytes_that_it_needs(fixtures, bucket, counter, tmp_path, layout):
    camera = "observation.images.cam_high"
    made = tmp_path / "made"
    demoreel.convert(fixtures / "g1_v30", made, to=layout, table_name=_name(layout), verify=False)
    uri = f"{bucket.upload(made, f'g1 {layout}')}/{LAYOUTS[layout]}.lance"
    videos = sum(path.stat().st_size for path in (fixtures / "g1_v30").rglob("*.mp4"))

    there = Dataset(made, tables=remote_place(uri))
    first = there[500]
    assert 0 < counter.bytes < videos / 8  # neither a video nor a moov box was read whole
    np.testing.assert_array_equal(first[camera], demoreel.open(made)[500][camera])

    there.batch(range(0, 1013, 100))  # numbers and packet indices of all episodes are there now
    rows = np.random.default_rng(1).integers(0, 1013, 32)
    before = counter.bytes
    there.batch(rows)
    assert 0 < counter.bytes - before <= 1.2 * whole_groups(there, camera, rows.tolist())
