"""Path templates come from strangers: nothing they say may lead out of the dataset's folder."""

from __future__ import annotations

import pickle
from pathlib import PurePosixPath

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from demoreel.errors import MetadataError, UnsafePathError
from demoreel.model import PathTemplate

FIELDS = ("chunk_index", "file_index", "video_key")
GOOD = "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4"


def template(text, fields=FIELDS):
    return PathTemplate(text, fields=fields, where="video_path", file="meta/info.json")


def test_a_path_is_made():
    path = template(GOOD).format(video_key="front", chunk_index=2, file_index=1234)
    assert path == "videos/front/chunk-002/file-1234.mp4"


@pytest.mark.parametrize(
    "text",
    [
        "a/{chunk_index}/{file_index}",
        "{chunk_index:d}",
        "{chunk_index:6}",
        "{chunk_index:06}",
        "{{literal}}/{chunk_index:03d}",
        "no fields at all.parquet",
        "non-ASCII/käse-{chunk_index:03d}",
        "a..b/{chunk_index}",
        "{video_key}.mp4",
    ],
)
def test_harmless_templates(text):
    path = template(text).format(video_key="front", chunk_index=1, file_index=2)
    assert path == text.format(video_key="front", chunk_index=1, file_index=2)


HOSTILE = [
    # out of the folder
    "/etc/passwd",
    "/{chunk_index}",
    "//server/share",
    "../{chunk_index}",
    "..",
    "data/../../{chunk_index}",
    "data/{chunk_index}/../../../x",
    "",
    "..\\{chunk_index}",
    "data\\{chunk_index}",
    "C:\\{chunk_index}",
    "data/{chunk_index}\0.parquet",
    "data/\ud800/{chunk_index}",
    # into objects
    "{0.__class__}",
    "{video_key.__class__}",
    "{video_key.__class__.__mro__}",
    "{video_key[0]}",
    "{chunk_index.real}",
    "{chunk_index[0]}",
    "{__import__}",
    # other formats
    "{video_key!r}",
    "{chunk_index!s}",
    "{chunk_index!a:03d}",
    "{chunk_index:999999999d}",
    "{chunk_index:100d}",
    "{chunk_index:0999d}",
    "{chunk_index:.9f}",
    "{chunk_index:,}",
    "{chunk_index:x}",
    "{chunk_index:*>9d}",
    "{chunk_index:c}",
    "{chunk_index:{file_index}d}",
    "{chunk_index:{}}",
    "{chunk_index:٣d}",
    "{video_key:03d}",
    "{video_key:>9}",
    "{video_key:{chunk_index}}",
    "{chunk_index }",
    # outside, whatever else
    "../{nothing}",
    "/{chunk_index",
]

WRONG = [
    "{0}",
    "{}",
    "{nothing}",
    "{Chunk_index}",
    "{chunk_index",
    "chunk_index}",
    "{chunk_index:03d",
]


@pytest.mark.parametrize("text", HOSTILE, ids=ascii)
def test_hostile_templates_are_refused(text):
    with pytest.raises(UnsafePathError) as caught:
        template(text)
    assert isinstance(caught.value, MetadataError)
    assert "video_path" in caught.value.what
    assert caught.value.where["template"] == repr(text)
    assert caught.value.where["file"] == "meta/info.json"
    assert caught.value.hint


@pytest.mark.parametrize("text", WRONG)
def test_templates_that_are_merely_wrong(text):
    with pytest.raises(MetadataError) as caught:
        template(text)
    assert not isinstance(caught.value, UnsafePathError)
    assert caught.value.code == "template-wrong"
    assert "video_path" in caught.value.what
    assert "demoreel repair" in caught.value.hint


@pytest.mark.parametrize(
    "key",
    [
        "..",
        "../../etc",
        "a/../../b",
        "a/..",
        "../x",
        "a\\b",
        "a\0b",
        "\udfff",
    ],
)
def test_hostile_camera_keys_are_refused(key):
    checked = template(GOOD)
    with pytest.raises(UnsafePathError, match="outside"):
        checked.format(video_key=key, chunk_index=0, file_index=0)
    # And again: a refusal is not remembered as a path.
    with pytest.raises(UnsafePathError, match="outside"):
        checked.format(video_key=key, chunk_index=0, file_index=0)


def test_a_key_that_begins_a_path_may_not_be_absolute():
    checked = template("{video_key}/file")
    assert checked.format(video_key="front", chunk_index=0, file_index=0) == "front/file"
    for key in ("/etc", "", ".."):
        with pytest.raises(UnsafePathError):
            checked.format(video_key=key, chunk_index=0, file_index=0)


def test_dots_that_only_add_up_with_the_key():
    checked = template(".{video_key}/x")
    assert checked.format(video_key="hidden", chunk_index=0, file_index=0) == ".hidden/x"
    with pytest.raises(UnsafePathError):
        checked.format(video_key=".", chunk_index=0, file_index=0)


def test_keys_with_braces_are_text():
    path = template(GOOD).format(video_key="{chunk_index.__class__}", chunk_index=0, file_index=0)
    assert path == "videos/{chunk_index.__class__}/chunk-000/file-000.mp4"


def test_only_the_fields_of_its_layout():
    with pytest.raises(MetadataError, match="episode_index"):
        template("{episode_index:06d}")
    assert template("{episode_index:06d}", ("episode_index",)).format(episode_index=7) == "000007"


alphabet = st.sampled_from(
    ["/", ".", "..", "{", "}", "{{", "}}", ":", "!", "[0]", "0", "9", "d", "r", "\\", "\0", "a"]
    + [f"{{{name}}}" for name in FIELDS]
    + [f"{{{name}:03d}}" for name in FIELDS]
    + [".__class__", "chunk_index", "video_key", "~", " ", "é", "\ud800"]
)


@given(st.lists(alphabet, max_size=8).map("".join), st.lists(alphabet, max_size=4).map("".join))
@example("{video_key}", "/")
@example("a/{video_key}", "..")
def test_whatever_is_let_through_stays_inside(text, key):
    try:
        path = template(text).format(video_key=key, chunk_index=3, file_index=5)
    except MetadataError:
        return
    pure = PurePosixPath(path)
    assert not pure.is_absolute()
    assert ".." not in pure.parts
    assert len(path) < 400
    path.encode()


def test_templates_compare_by_their_text_and_travel():
    one, two = template(GOOD), PathTemplate(GOOD, fields=FIELDS, where="elsewhere")
    assert one == two
    assert hash(one) == hash(two)
    assert one != template("other")
    assert one != GOOD
    again = pickle.loads(pickle.dumps(one))
    assert again == one
    assert (again.fields, again.where) == (one.fields, one.where)
    assert GOOD in repr(one)
