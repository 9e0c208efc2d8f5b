"""Datasets that are sent: whole or not at all, again after an interruption, over others."""

from __future__ import annotations

import json
import shutil
import uuid
from pathlib import Path

import pytest

import demoreel
from demoreel.errors import (
    AccessError,
    ArgumentError,
    DatasetBusyError,
    DatasetNotFoundError,
    StoreError,
    TargetExistsError,
)
from demoreel.storage.remote.fetch import working_home
from demoreel.storage.remote.send import INFO, refuse_remote_target, remote_target
from support.proxy.faults import Cut, Status


@pytest.fixture
def place(s3, proxy) -> str:
    """A URI where nothing is."""
    return s3.uri(f"sent/{uuid.uuid4().hex[:8]}/task")


def send(uri, folder, *what, **options):
    with remote_target(uri, *what, **options) as out:
        if out.made() is None:
            shutil.copytree(folder, out.folder, ignore=shutil.ignore_patterns(".demoreel"))
            out.note_made({})
        return out.send()


def begin(uri, error):
    """Begin to make a dataset, then fail."""
    with remote_target(uri) as out:
        (out.folder / "meta").mkdir(parents=True)
        raise error


def there(s3, uri: str) -> dict[str, bytes]:
    prefix = uri.removeprefix(f"s3://{s3.bucket}/")
    return {key.removeprefix(f"{prefix}/"): s3.get(key) for key in s3.list(prefix)}


def here(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and ".demoreel" not in path.parts
    }


def put(proxy) -> list[str]:
    return [r.path.split("?")[0] for r in proxy.log if r.method == "PUT"]


@pytest.mark.parametrize("layout", ["v3.0", "lance-video"])
def test_info_comes_last(layout, s3, place, proxy, local_datasets):
    done = send(place, local_datasets(layout))
    assert there(s3, place) == here(local_datasets(layout))
    assert done.files == done.sent_files == len(put(proxy))
    assert put(proxy)[-1].endswith(f"task/{INFO}")
    assert len(demoreel.open(place)) == len(demoreel.open(local_datasets(layout)))
    assert list(working_home().iterdir()) == []


def test_what_is_there_is_not_replaced(s3, place, local_datasets):
    send(place, local_datasets("v3.0"))
    before = there(s3, place)
    with pytest.raises(TargetExistsError, match="dataset") as raised:
        send(place, local_datasets("v2.1"))
    assert raised.value.where["uri"] == place
    with pytest.raises(TargetExistsError):
        refuse_remote_target(place)
    refuse_remote_target(place, overwrite=True)
    assert there(s3, place) == before


def test_other_things_are_never_replaced(s3, place, local_datasets):
    key = place.removeprefix(f"s3://{s3.bucket}/")
    s3.put(f"{key}/thesis.tex", b"two years of work")
    for overwrite in (False, True):
        with pytest.raises(TargetExistsError) as raised:
            send(place, local_datasets("v3.0"), overwrite=overwrite)
        assert raised.value.where["object"] == "thesis.tex"
    assert there(s3, place) == {"thesis.tex": b"two years of work"}


def test_overwriting(s3, place, proxy, local_datasets):
    send(place, local_datasets("v3.0"))
    proxy.reset()
    done = send(place, local_datasets("v3.0"), overwrite=True)  # the same
    assert done.sent_files == 0
    assert put(proxy) == []
    send(place, local_datasets("lance-native"), overwrite=True)
    assert there(s3, place) == here(local_datasets("lance-native"))
    assert demoreel.open(place).layout == "lance-native"


def test_an_interrupted_upload_is_no_dataset_and_goes_on(s3, place, proxy, local_datasets):
    source = local_datasets("v3.0")
    proxy.fail(1.0, Status(403), where="videos/")
    with pytest.raises(AccessError):
        send(place, source)
    assert INFO not in there(s3, place)
    assert there(s3, place)
    with pytest.raises(DatasetNotFoundError):
        demoreel.open(place)
    proxy.clear()
    with pytest.raises(TargetExistsError, match="interrupted upload"):
        send(place, source, "another command")
    proxy.reset()
    done = send(place, source)
    assert there(s3, place) == here(source)
    assert 0 < done.sent_files < done.files
    assert not any("/data/" in path for path in put(proxy))


def test_overwriting_that_is_interrupted_leaves_no_mixture(s3, place, proxy, local_datasets):
    send(place, local_datasets("v3.0"))
    proxy.fail(1.0, Status(403), where="frames.lance")
    with pytest.raises(AccessError):
        send(place, local_datasets("lance-native"), overwrite=True)
    with pytest.raises(DatasetNotFoundError):
        demoreel.open(place)
    proxy.clear()
    send(place, local_datasets("lance-native"), overwrite=True)
    assert there(s3, place) == here(local_datasets("lance-native"))


def test_objects_that_are_not_what_was_sent_are_sent_again(s3, place, proxy, local_datasets):
    source = local_datasets("v3.0")
    proxy.fail(1.0, Status(403), where="videos/")
    with pytest.raises(AccessError):
        send(place, source)
    proxy.clear()
    key = place.removeprefix(f"s3://{s3.bucket}/")
    name = next(name for name in there(s3, place) if name.startswith("data/"))
    s3.put(f"{key}/{name}", b"x" * len(there(s3, place)[name]))
    send(place, source)
    assert there(s3, place) == here(source)


def test_somebody_else_writes_there(s3, place, proxy, local_datasets):
    source = local_datasets("v3.0")
    proxy.fail(1.0, Status(403), where="videos/")
    with pytest.raises(AccessError):
        send(place, source)
    proxy.clear()
    key = place.removeprefix(f"s3://{s3.bucket}/")
    s3.put(f"{key}/{INFO}", b"{}")
    with pytest.raises(TargetExistsError):
        send(place, source)
    assert there(s3, place)[INFO] == b"{}"


def test_an_answer_that_was_lost(s3, place, proxy, local_datasets):
    """The commit has happened, but the response was lost."""
    source = local_datasets("v2.1")
    proxy.fail_next(1, Cut(), where=f"task/{INFO}")
    try:
        send(place, source)
    except StoreError:
        assert send(place, source).sent_files == 0
    assert there(s3, place) == here(source)
    assert list(working_home().iterdir()) == []


def test_a_large_file_goes_in_parts(s3, place, proxy, tmp_path):
    folder = tmp_path / "made"
    (folder / "meta").mkdir(parents=True)
    (folder / INFO).write_text("{}")
    (folder / "videos").mkdir()
    (folder / "videos" / "long.mp4").write_bytes(bytes(range(256)) * (9 << 12))  # 9 MiB
    send(place, folder)
    assert there(s3, place) == here(folder)
    assert len([path for path in put(proxy) if path.endswith("long.mp4")]) == 2
    assert send(place, folder, overwrite=True).sent_files == 0  # known by the sum of its parts


def test_two_at_the_same_time(place):
    with remote_target(place, "x"), pytest.raises(DatasetBusyError), remote_target(place, "x"):
        pass


def test_an_error_leaves_nothing_here(place):
    with pytest.raises(ValueError, match="mine"):
        begin(place, ValueError("mine"))
    assert list(working_home().iterdir()) == []


def test_what_was_made_but_not_noted_is_made_again(place):
    with pytest.raises(KeyboardInterrupt):
        begin(place, KeyboardInterrupt())
    with remote_target(place) as out:
        assert out.made() is None
        assert not out.folder.exists()
        out.folder.mkdir()
        out.note_made({"episodes": 3, "path": Path("x")})
        assert out.made() == {"episodes": 3, "path": "x"}


@pytest.mark.parametrize(
    ("uri", "hint"),
    [("hf://datasets/me/task", "demoreel push"), ("hf://buckets/me/task", "hf buckets sync")],
)
def test_the_hub_is_written_to_otherwise(uri, hint):
    with pytest.raises(ArgumentError) as raised, remote_target(uri):
        pass
    assert hint in (raised.value.hint or "")


def test_no_credentials_are_told(place, proxy, local_datasets, s3, monkeypatch):
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "not-the-secret")
    with pytest.raises(StoreError) as raised:
        send(place, local_datasets("v3.0"))
    said = f"{raised.value} {json.dumps(raised.value.where, default=str)}"
    assert "not-the-secret" not in said
    assert s3.environment["AWS_SECRET_ACCESS_KEY"] not in said
