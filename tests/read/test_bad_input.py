"""Bad input gets a clear error that names the place, and nothing else happens."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import warnings

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import demoreel
from demoreel.errors import (
    DatasetNotFoundError,
    DemoreelError,
    DemoreelWarning,
    FrameMismatchError,
    MetadataError,
    OutOfRangeError,
    TableError,
    UnsafePathError,
    UnsupportedVersionError,
    VideoError,
)
from demoreel.testing import make_dataset

CAMERA = "observation.images.cam0"


@pytest.fixture(scope="module")
def pristine(tmp_path_factory):
    home = tmp_path_factory.mktemp("pristine")
    return {
        layout: make_dataset(home / layout, episodes=[6, 9, 4], layout=layout)
        for layout in ("v2.0", "v2.1", "v3.0")
    }


@pytest.fixture(params=["v2.1", "v3.0"])
def root(request, pristine, tmp_path):
    return shutil.copytree(pristine[request.param], tmp_path / "copy")


@pytest.fixture
def v3(pristine, tmp_path):
    return shutil.copytree(pristine["v3.0"], tmp_path / "copy")


@pytest.fixture
def v2(pristine, tmp_path):
    return shutil.copytree(pristine["v2.1"], tmp_path / "copy")


def videos(root):
    return sorted((root / "videos").rglob("*.mp4"))


def tables(root):
    return sorted((root / "data").rglob("*.parquet"))


def change_info(root, change):
    path = root / "meta" / "info.json"
    info = json.loads(path.read_text())
    change(info)
    path.write_text(json.dumps(info))


def names_the_place(error, *words):
    text = str(error.value)
    for word in words:
        assert str(word) in text, text


# The folder


def test_nothing_there(tmp_path):
    with pytest.raises(DatasetNotFoundError) as caught:
        demoreel.open(tmp_path / "nowhere")
    names_the_place(caught, tmp_path / "nowhere")
    assert isinstance(caught.value, FileNotFoundError)


def test_a_folder_that_is_no_dataset(tmp_path):
    with pytest.raises(DatasetNotFoundError, match=r"meta/info\.json"):
        demoreel.open(tmp_path)
    file = tmp_path / "file"
    file.write_text("x")
    with pytest.raises(DatasetNotFoundError):
        demoreel.open(file)


def test_a_folder_of_datasets_names_them(v3):
    with pytest.raises(DatasetNotFoundError, match="copy"):
        demoreel.open(v3.parent)


# Metadata


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '"x"', "\x00\xff", "{'a': 1}"])
def test_info_that_is_not_json_or_no_object(root, text):
    (root / "meta/info.json").write_text(text)
    with pytest.raises(MetadataError) as caught:
        demoreel.open(root)
    names_the_place(caught, root / "meta/info.json")


@pytest.mark.parametrize("field", ["codebase_version", "fps", "features"])
def test_info_without_a_field(root, field):
    change_info(root, lambda info: info.pop(field))
    with pytest.raises(MetadataError, match=field) as caught:
        demoreel.open(root)
    names_the_place(caught, "info.json")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("fps", 0),
        ("fps", -3),
        ("fps", "30"),
        ("fps", True),
        ("fps", None),
        ("features", {}),
        ("features", []),
        ("features", {"a": 3}),
        ("features", {"a": {"shape": [1]}}),
        ("features", {"a": {"dtype": "float32"}}),
        ("features", {"a": {"dtype": "float32", "shape": [-1]}}),
        ("features", {"a": {"dtype": "float32", "shape": [1 << 40, 1 << 40]}}),
        ("features", {"a": {"dtype": "object", "shape": [1]}}),
        ("features", {"a": {"dtype": "video", "shape": [1]}}),
        ("total_frames", "many"),
        ("chunks_size", -1),
    ],
)
def test_info_with_a_field_that_makes_no_sense(root, field, value):
    change_info(root, lambda info: info.update({field: value}))
    with pytest.raises(MetadataError):
        demoreel.open(root)


@pytest.mark.parametrize("version", ["v1.6", "v3.1", "v4.0", "", "3.0", 3, "v2.1.0"])
def test_versions_that_are_not_readable(root, version):
    change_info(root, lambda info: info.update(codebase_version=version))
    with pytest.raises(UnsupportedVersionError, match=r"v2\.0, v2\.1, v3\.0"):
        demoreel.open(root)


@pytest.mark.parametrize("field", ["data_path", "video_path"])
@pytest.mark.parametrize(
    "template",
    [
        "/etc/passwd",
        "../outside/{chunk_index}",
        "data/../../{file_index}.parquet",
        "data/{chunk_index.__class__}.parquet",
        "data/{chunk_index[0]}.parquet",
        "data/{chunk_index!r}.parquet",
        "data/{chunk_index:>{file_index}}.parquet",
        "data/{chunk_index:99999999d}.parquet",
        "data\\{chunk_index}",
        "",
    ],
)
def test_hostile_templates(v3, field, template):
    change_info(v3, lambda info: info.update({field: template}))
    with pytest.raises(UnsafePathError, match=field):
        demoreel.open(v3)


@pytest.mark.parametrize("field", ["data_path", "video_path"])
@pytest.mark.parametrize(
    "template",
    ["data/{secret}.parquet", "data/{}.parquet", "data/{0}.parquet", "data/{chunk_index"],
)
def test_templates_that_are_wrong(v3, field, template):
    change_info(v3, lambda info: info.update({field: template}))
    with pytest.raises(MetadataError, match=field) as caught:
        demoreel.open(v3)
    assert not isinstance(caught.value, UnsafePathError)


def test_a_camera_key_that_climbs(v3):
    def climb(info):
        info["features"]["../../outside"] = info["features"].pop(CAMERA)

    change_info(v3, climb)
    with pytest.raises(MetadataError):
        demoreel.open(v3)[0]


def test_zero_episodes(root):
    import pyarrow.parquet as pq

    if (root / "meta/episodes.jsonl").exists():
        (root / "meta/episodes.jsonl").write_text("")
    else:
        path = next((root / "meta/episodes").rglob("*.parquet"))
        pq.write_table(pq.read_table(path).slice(0, 0), path)
    with pytest.raises(MetadataError, match="no episodes") as caught:
        demoreel.open(root)
    names_the_place(caught, root)


def test_no_episode_files(v3):
    shutil.rmtree(v3 / "meta/episodes")
    with pytest.raises(MetadataError, match="episodes"):
        demoreel.open(v3)


def test_episode_metadata_without_a_footer(v3):
    path = next((v3 / "meta/episodes").rglob("*.parquet"))
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(MetadataError) as caught:
        demoreel.open(v3)
    names_the_place(caught, path)


@pytest.mark.parametrize("line", ["{", "3", '{"episode_index": 7}', '{"episode_index": "x"}'])
def test_episode_lines_that_make_no_sense(v2, line):
    path = v2 / "meta/episodes.jsonl"
    path.write_text(path.read_text() + line + "\n")
    with pytest.raises(MetadataError) as caught:
        demoreel.open(v2)
    names_the_place(caught, path, "line: 4")


def test_two_episodes_of_one_number(v2):
    path = v2 / "meta/episodes.jsonl"
    path.write_text(path.read_text() + path.read_text().splitlines()[1] + "\n")
    with pytest.raises(MetadataError, match="same episode_index"):
        demoreel.open(v2)


def test_tasks_that_are_missing(root):
    for path in (root / "meta").glob("tasks.*"):
        path.unlink()
    with pytest.raises(MetadataError, match="tasks"):
        demoreel.open(root)


def test_a_row_without_its_task(v2):
    (v2 / "meta/tasks.jsonl").write_text('{"task_index": 5, "task": "another"}\n')
    with pytest.raises(MetadataError, match="task_index 0"):
        demoreel.open(v2, cameras=[])[0]


def test_statistics_may_be_missing_and_that_is_said_once(root):
    for name in ("stats.json", "episodes_stats.jsonl"):
        (root / "meta" / name).unlink(missing_ok=True)
    ds = demoreel.open(root)
    with pytest.warns(DemoreelWarning, match="no statistics"):
        assert ds.stats is None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert ds.stats is None


def test_odd_tasks_of_an_episode_are_shown_as_they_are(v2):
    path = v2 / "meta/episodes.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    lines[0]["tasks"], lines[1]["tasks"] = "one text", 5
    del lines[2]["tasks"]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = [episode.tasks for episode in demoreel.open(v2).episodes]
    assert found == [("one text",), ("5",), ()]


def test_statistics_that_are_broken_are_an_error(v3):
    (v3 / "meta/stats.json").write_text('{"action": {"mean": ["x", [1]]}}')
    with pytest.raises(MetadataError, match="action"):
        _ = demoreel.open(v3).stats


# Tables


def test_a_missing_table(root):
    path = tables(root)[0]
    path.unlink()
    with pytest.raises(TableError, match="missing") as caught:
        demoreel.open(root)[0]
    names_the_place(caught, root, path.name)


@pytest.mark.parametrize("keep", [0, 3, 100, -1, -8])
def test_a_table_without_its_footer(root, keep):
    path = tables(root)[0]
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(TableError) as caught:
        demoreel.open(root)[0]
    names_the_place(caught, root, path.name)


def test_flipped_bits_in_a_table_are_an_error_or_change_nothing(v3):
    """Parquet has no checksums here: decoders may notice, and must not crash."""
    import numpy as np

    path = tables(v3)[0]
    data = bytearray(path.read_bytes())
    for at in np.random.default_rng(0).integers(4, len(data), 40).tolist():
        damaged = bytearray(data)
        damaged[at] ^= 0x41
        path.write_bytes(damaged)
        with contextlib.suppress(TableError, MetadataError):
            demoreel.open(v3, cameras=[]).batch(range(19))


# Videos


def test_a_missing_video(root):
    path = videos(root)[0]
    path.unlink()
    with pytest.raises(VideoError, match="cannot be opened") as caught:
        demoreel.open(root)[0]
    names_the_place(caught, path)


@pytest.mark.parametrize("keep", [0, 10, 40, 500, -10])
def test_a_truncated_video(root, keep):
    path = videos(root)[0]
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(VideoError) as caught:
        demoreel.open(root)[0]
    names_the_place(caught, path)


def test_a_file_that_is_no_video(root):
    path = videos(root)[0]
    path.write_bytes(b"this is no video at all, just text " * 40)
    with pytest.raises(VideoError) as caught:
        demoreel.open(root)[0]
    names_the_place(caught, path)


def test_a_folder_where_a_video_should_be(root):
    path = videos(root)[0]
    path.unlink()
    path.mkdir()
    with pytest.raises(VideoError):
        demoreel.open(root)[0]


def test_another_episodes_video_in_v2(v2):
    first, second = videos(v2)[:2]
    shutil.copy(second, first)
    ds = demoreel.open(v2)
    with pytest.raises(FrameMismatchError) as caught:
        ds[0]
    names_the_place(caught, v2, "episode: 0", CAMERA, first.name, "6 frames", "9 frames")
    assert int(ds[6]["episode_index"]) == 1  # the others still read


def test_a_shorter_video_in_v3(v3, tmp_path):
    shorter = make_dataset(tmp_path / "shorter", episodes=[6, 9, 3])
    shutil.copy(videos(shorter)[0], videos(v3)[0])
    ds = demoreel.open(v3)
    with pytest.raises(FrameMismatchError) as caught:
        ds[15]
    names_the_place(caught, v3, "episode: 2", CAMERA, videos(v3)[0].name, "4 frames", "18 frames")
    assert int(ds[14]["episode_index"]) == 1


def test_a_start_that_contradicts_the_lengths_in_v3(v3):
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = next((v3 / "meta/episodes").rglob("*.parquet"))
    table = pq.read_table(path)
    name = f"videos/{CAMERA}/from_timestamp"
    starts = table[name].to_pylist()
    starts[1] += 2 / 30
    at = table.schema.get_field_index(name)
    pq.write_table(table.set_column(at, table.schema.field(at), pa.array(starts)), path)
    ds = demoreel.open(v3)
    with pytest.raises(FrameMismatchError, match="Metadata and video disagree"):
        ds[8]
    assert int(ds[2]["index"]) == 2


@pytest.mark.soak
def test_flipped_bits_in_a_video_never_give_another_frame(v3):
    """Damage is an error, or an image that still says which frame it is, or says nothing."""
    import numpy as np

    from demoreel.testing import read_stamp

    path = videos(v3)[0]
    data = path.read_bytes()
    for at in np.random.default_rng(0).integers(0, len(data), 60).tolist():
        damaged = bytearray(data)
        damaged[at] ^= 0x10
        path.write_bytes(damaged)
        for number, episode, frame in ((3, 0, 3), (9, 1, 3), (18, 2, 3)):
            try:
                seen = read_stamp(demoreel.open(v3)[number][CAMERA])
            except (VideoError, ValueError):
                continue
            assert (seen.episode, seen.frame) == (episode, frame)


# Images in tables


def test_an_image_that_does_not_decode(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    from demoreel.errors import PictureError

    root = make_dataset(tmp_path / "images", episodes=[4], cameras=0, image_cameras={"c": (64, 64)})
    path = tables(root)[0]
    table = pq.read_table(path)
    images = table["c"].to_pylist()
    images[2]["bytes"] = images[2]["bytes"][:50]
    images[3]["bytes"] = None
    at = table.schema.get_field_index("c")
    pq.write_table(
        table.set_column(at, table.schema.field(at), pa.array(images, table.schema.field(at).type)),
        path,
    )
    ds = demoreel.open(root)
    assert int(ds[1]["index"]) == 1
    for number in (2, 3):
        with pytest.raises(PictureError) as caught:
            ds[number]
        names_the_place(caught, root, "episode: 0", f"frame: {number}", "camera: c", path.name)


def test_out_of_range_says_how_many_there_are(root):
    with pytest.raises(OutOfRangeError, match="19 frames"):
        demoreel.open(root)[19]
    with pytest.raises(OutOfRangeError, match="0 to 2"):
        demoreel.open(root, episodes=[3])


# What fuzzing found


def test_a_column_that_says_which_row_is_which_and_holds_text(root):
    table = pq.read_table(tables(root)[0])
    place = table.column_names.index("frame_index")
    texts = pa.array(["first"] * len(table))
    pq.write_table(table.set_column(place, "frame_index", texts), tables(root)[0])
    with pytest.raises(TableError, match="frame_index"):
        demoreel.open(root)[0]


def test_a_text_column_declared_as_language(root):
    def declare(info):
        info["features"]["language_events"] = {"dtype": "language", "shape": [1], "names": None}

    change_info(root, declare)
    for path in tables(root):
        table = pq.read_table(path)
        pq.write_table(table.append_column("language_events", table["frame_index"]), path)
    with pytest.raises(TableError, match="language rows"):
        demoreel.open(root)[0]


def test_tasks_whose_index_is_a_list(v3):
    path = v3 / "meta/tasks.parquet"
    pq.write_table(pa.table({"task": ["do it"], "task_index": [[1.0]]}), path)
    with pytest.raises(MetadataError, match="task_index"):
        demoreel.open(v3)


@pytest.mark.parametrize("value", ["true", "1e400", "-1", "9" * 30])
@pytest.mark.parametrize("name", ["length", "episode_index"])
def test_episodes_with_a_number_that_is_none(v2, name, value):
    path = v2 / "meta/episodes.jsonl"
    text = re.sub(rf'"{name}": \d+', f'"{name}": {value}', path.read_text())
    path.write_text(text)
    with pytest.raises(DemoreelError):
        demoreel.open(v2)[0]


def test_tasks_with_an_index_without_end(v2):
    (v2 / "meta/tasks.jsonl").write_text('{"task_index": Infinity, "task": "do it"}\n')
    with pytest.raises(MetadataError, match="task"):
        demoreel.open(v2)


def test_episodes_that_nest_without_end_do_not_end_the_process(v2):
    nested = "[" * 50_000 + "]" * 50_000
    path = v2 / "meta/episodes.jsonl"
    path.write_text(path.read_text().replace("}\n", f', "x": {nested}}}\n', 1))
    with pytest.raises(MetadataError):
        demoreel.open(v2)


def test_a_shape_of_more_dimensions_than_arrays_have(root):
    change_info(root, lambda info: info["features"]["action"].update(shape=[1] * 100))
    with pytest.raises(MetadataError, match="shape"):
        demoreel.open(root)
