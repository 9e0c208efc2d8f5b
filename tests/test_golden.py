"""lerobot 0.6.1's own answers, item by item: keys, order, dtypes, shapes, values, pixels."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import numpy as np
import pytest
import torch

import demoreel
from demoreel.torch import LeRobotDataset

DATASETS = ["g1_v30", "g1_v21", "kitchen_v30", "kitchen_images_v30"]


def golden_cases(fixtures, name):
    # The v2.1 recording holds the same data as its v3.0 form, so it has the same answers.
    answers = json.loads((fixtures / "golden" / f"{name.replace('v21', 'v30')}.json").read_text())
    return answers["cases"]


def difference(value: Any, expected: dict[str, Any]) -> str | None:
    if "python" in expected:
        return None if value == expected["python"] else f"{value!r} != {expected['python']!r}"
    array = np.ascontiguousarray(np.asarray(value))
    if str(array.dtype) != expected["dtype"]:
        return f"dtype {array.dtype} != {expected['dtype']}"
    if list(np.shape(value)) != expected["shape"]:
        return f"shape {np.shape(value)} != {expected['shape']}"
    if hashlib.sha256(array.tobytes()).hexdigest() != expected["sha256"]:
        return "bytes differ"
    return None


def compare(item: dict[str, Any], expected: dict[str, Any]) -> dict[str, str]:
    assert list(item) == list(expected)
    found = {key: difference(item[key], expected[key]) for key in expected}
    return {key: words for key, words in found.items() if words}


@pytest.mark.parametrize("name", DATASETS)
def test_lerobot_face_gives_lerobots_items(fixtures, name):
    for case in golden_cases(fixtures, name):
        ds = LeRobotDataset("any/name", root=fixtures / name, **case["kwargs"])
        assert (len(ds), ds.num_frames) == (case["len"], case["len"])
        assert ds.num_episodes == case["num_episodes"]
        for index, expected in case["items"].items():
            item = as_lerobot_gives(ds, ds[int(index)], **case["kwargs"])
            assert compare(item, expected) == {}, (case["kwargs"], index)


def as_lerobot_gives(
    ds: LeRobotDataset, item: dict[str, Any], *, return_uint8: bool = False, **_: object
) -> dict[str, Any]:
    """Return an item whose images of tables are floats, as lerobot has them for return_uint8."""
    for key in ds.meta.image_keys if return_uint8 else ():
        assert item[key].dtype == torch.uint8
        item[key] = item[key].to(torch.float32) / 255
    return item


@pytest.mark.parametrize("name", DATASETS)
def test_batches_give_the_same_items_as_single_reads(fixtures, name):
    for case in golden_cases(fixtures, name):
        ds = LeRobotDataset("any/name", root=fixtures / name, **case["kwargs"])
        indices = [int(index) for index in case["items"]]
        for item, expected in zip(ds.__getitems__(indices), case["items"].values(), strict=True):
            assert compare(as_lerobot_gives(ds, dict(item), **case["kwargs"]), expected) == {}


@pytest.mark.parametrize("name", DATASETS)
def test_numpy_face_gives_the_same_with_uint8_images(fixtures, name):
    for case in golden_cases(fixtures, name):
        wanted = case["kwargs"]
        if not wanted.get("return_uint8"):
            continue
        ds = demoreel.open(
            fixtures / name,
            episodes=wanted.get("episodes"),
            windows=wanted.get("delta_timestamps"),
        )
        assert len(ds) == case["len"]
        for index, expected in case["items"].items():
            item = ds[int(index)]
            for key in ds.info.image_keys:
                # lerobot gives image cameras as floats even when asked for uint8; we do not.
                assert item[key].dtype == np.uint8
                item[key] = item[key].astype(np.float32) / np.float32(255)
            assert compare(item, expected) == {}, (wanted, index)
