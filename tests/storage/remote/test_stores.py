"""Object stores: where credentials come from, what is told of them, and what is read without."""

from __future__ import annotations

import logging
import os
import pickle
import subprocess
import sys
import traceback

import pytest

import demoreel
from demoreel.errors import AccessError, ArgumentError, ObjectChangedError, StoreError
from demoreel.storage.place import remote_place
from demoreel.storage.remote.files import RemoteFile, store_of
from demoreel.storage.remote.object_store import ObjectStore, _with_profile
from demoreel.storage.store import is_uri
from support.fault_proxy import Status
from support.s3_server import KEY, REGION, SECRET

from ...conftest import assert_same_batch


@pytest.fixture
def no_environment(monkeypatch, proxy, tmp_path):
    """No credentials anywhere; returns the endpoint."""
    endpoint = os.environ["AWS_ENDPOINT_URL"]
    for name in list(os.environ):
        if name.startswith("AWS_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    return endpoint


# Where credentials come from


def test_profiles(no_environment, local_datasets, uploaded, tmp_path, monkeypatch):
    (tmp_path / "credentials").write_text(
        f"[default]\naws_access_key_id = nobody\naws_secret_access_key = wrong\n"
        f"[robots]\naws_access_key_id = {KEY}\naws_secret_access_key = {SECRET}\n"
    )
    (tmp_path / "config").write_text(
        f"[profile robots]\nregion = {REGION}\nendpoint_url = {no_environment}\n"
    )
    uri = uploaded("v3.0")
    monkeypatch.setenv("AWS_PROFILE", "robots")
    monkeypatch.setenv("AWS_ALLOW_HTTP", "true")  # Lance finds the profile itself
    for layout in ("v3.0", "lance-video"):
        there = demoreel.open(uploaded(layout))
        assert_same_batch(there[::9], demoreel.open(local_datasets(layout))[::9])
    monkeypatch.setenv("AWS_ENDPOINT_URL", no_environment)
    monkeypatch.delenv("AWS_PROFILE")
    with pytest.raises(AccessError):  # those of the default profile are wrong
        demoreel.open(uri)
    monkeypatch.setenv("AWS_PROFILE", "somebody")
    with pytest.raises(AccessError, match="boto3"):
        demoreel.open(uri)


def test_what_counts_more_than_a_profile(no_environment, tmp_path, monkeypatch):
    (tmp_path / "credentials").write_text(
        "[default]\naws_access_key_id = profile\naws_secret_access_key = s\n"
        "region = profile\nendpoint_url = http://profile\n"
    )
    of_profile = {
        "aws_access_key_id": "profile",
        "aws_secret_access_key": "s",
        "aws_region": "profile",
        "aws_endpoint": "http://profile",
    }
    assert _with_profile({}) == (of_profile, None)
    assert _with_profile({"aws_region": "mine"})[0] == {**of_profile, "aws_region": "mine"}
    given = {"endpoint_url": "http://mine", "access_key_id": "k", "secret_access_key": "s"}
    assert _with_profile(given)[0] == {**given, "aws_region": "profile"}
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "environment")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "environment")
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://environment")
    assert _with_profile({}) == ({}, None)


@pytest.mark.parametrize("damage", ["no section\n", "[default\nx", "\udcff"])
def test_profiles_that_are_no_profiles(no_environment, tmp_path, damage):
    (tmp_path / "credentials").write_text(damage, errors="surrogateescape")
    assert _with_profile({}) == ({}, None)


@pytest.mark.parametrize(
    "names",
    [
        ("aws_access_key_id", "aws_secret_access_key", "aws_region", "aws_endpoint"),
        ("access_key_id", "secret_access_key", "region", "endpoint"),
        ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_REGION", "AWS_ENDPOINT_URL"),
        ("aws_access_key_id", "aws_secret_access_key", "aws_default_region", "endpoint_url"),
    ],
    ids=["aws_", "bare", "AWS_", "urls"],
)
def test_names_of_options(no_environment, uploaded, local_datasets, names):
    options = dict(zip(names, (KEY, SECRET, REGION, no_environment), strict=True))
    for layout in ("v3.0", "lance-video"):
        there = demoreel.open(uploaded(layout), storage_options=options)
        assert_same_batch(there[::20], demoreel.open(local_datasets(layout))[::20])


def test_options_that_make_no_sense(no_environment, s3):
    with pytest.raises(ArgumentError, match="storage_options"):
        demoreel.open(s3.uri("x"), storage_options={"aws_region": ["a"]})
    with pytest.raises(ArgumentError, match="no storage option 'no_such_option'") as caught:
        demoreel.open(s3.uri("x"), storage_options={"no_such_option": "x", **s3.storage_options})
    with pytest.raises(ArgumentError, match="did you mean 'aws_region'"):
        demoreel.open(s3.uri("x"), storage_options={"aws_regoin": "x"})
    assert SECRET not in str(caught.value)
    with pytest.raises(ArgumentError, match="remote"):
        demoreel.open(".", storage_options={"aws_region": "a"})


# Without a signature


@pytest.fixture
def public(proxy, s3):
    """The store without links, as for a bucket that is open to all."""
    store = ObjectStore(remote_place(s3.uri("public"), {**s3.storage_options}))
    store._signs = False
    s3.put("public/object", bytes(range(200)))
    return store


def test_reading_without_links(public, s3):
    found = public.stat("object")
    assert found.size == 200
    for size, etag in ((200, found.etag), (None, None)):
        file = RemoteFile(public, "object", uri="u", size=size, etag=etag, cache=None)
        assert file.read(10, 5) == bytes(range(10, 15))
        assert file.read(190, 50) == bytes(range(190, 200))
        parts = file.read_ranges([(0, 3), (150, 2)])
        assert [part.result() for part in parts] == [b"\0\1\2", bytes([150, 151])]
    s3.put("public/object", bytes(200))
    with pytest.raises(ObjectChangedError, match="etag"):
        file.read(20, 5)
    s3.delete("public/object")
    with pytest.raises(ObjectChangedError, match="gone"):
        file.read(20, 5)
    unknown = RemoteFile(public, "object", uri="u", size=200, etag=None, cache=None)
    with pytest.raises(StoreError, match="no such object"):
        unknown.read(20, 5)


def test_a_store_that_wants_no_signature_is_asked_without(no_environment, s3, proxy):
    options = {"aws_skip_signature": True, "aws_endpoint": no_environment, "aws_region": REGION}
    with pytest.raises(AccessError):  # this one wants some
        demoreel.open(s3.uri("x"), storage_options=options)


# What is told of credentials


def everything_said(error):
    said = "".join(traceback.format_exception(error))
    while error is not None:
        said += f"{error!r} {error} {error.args} {vars(error)} {pickle.dumps(error)!r}"
        error = error.__cause__ or error.__context__
    return said


@pytest.mark.parametrize("way", ["environment", "options"])
@pytest.mark.parametrize("layout", ["v3.0", "lance-video"])
def test_credentials_are_told_nowhere(
    no_environment, uploaded, s3, proxy, caplog, capfd, monkeypatch, way, layout
):
    caplog.set_level(logging.DEBUG)
    options = {**s3.storage_options, "aws_endpoint": no_environment}
    if way == "environment":
        for name, value in s3.environment.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("AWS_ENDPOINT_URL", no_environment)
        options = None
    uri = uploaded(layout)
    there = demoreel.open(uri, storage_options=options)
    there[0], there[30]
    said = repr(there) + str(vars(there)) + str(vars(there.reader)) + repr(there._arguments)
    said += repr(pickle.dumps(there))
    folder = there.folder
    said += f"{vars(folder)} {vars(folder.store)}"
    proxy.fail(1.0, how=Status(403))
    for number in (0, 55):
        try:
            demoreel.open(uri, storage_options=options)[number]
        except Exception as error:
            said += everything_said(error)
    proxy.clear()
    s3.delete(uri.removeprefix(f"s3://{s3.bucket}/"))
    try:
        there[40]
    except Exception as error:
        said += everything_said(error)
    said += caplog.text + "".join(capfd.readouterr())
    assert SECRET not in said
    assert "Signature=" not in said.replace("SignatureDoesNotMatch", "")
    assert "X-Amz" not in said


def test_copies_on_disk_hold_no_credentials(uploaded, tmp_path):
    there = demoreel.open(uploaded("v3.0"), cache_dir=tmp_path / "c")
    there[0]
    for path in (tmp_path / "c").rglob("*"):
        if path.is_file():
            assert SECRET.encode() not in path.read_bytes()
            assert b"X-Amz" not in path.read_bytes()


@pytest.mark.soak
def test_a_pickle_that_travels_to_another_machine(no_environment, uploaded, s3, tmp_path):
    options = {**s3.storage_options, "aws_endpoint": no_environment}
    there = demoreel.open(uploaded("v3.0"), storage_options=options)
    (tmp_path / "pickle").write_bytes(pickle.dumps(there))
    program = "import pickle, sys; pickle.load(open(sys.argv[1], 'rb'))[0]"
    stranger = [sys.executable, "-c", program, str(tmp_path / "pickle")]
    ended = subprocess.run(stranger, capture_output=True, text=True, check=False)
    assert "do not travel in pickles" in ended.stderr
    assert SECRET not in ended.stderr


# URIs


@pytest.mark.parametrize(
    ("path", "remote"),
    [("s3://a/b", True), ("hf://datasets/a/b", True), ("file:///a", False), ("a/b", False)],
)
def test_what_is_remote(path, remote):
    assert is_uri(path) is remote


@pytest.mark.parametrize(
    "uri",
    [
        "s3://bucket/a?versionId=3",
        "s3://key@bucket/a",
        "s3:///a",
        "http://host/a",
        "hf://models/a/b",
    ],
)
def test_uris_that_name_no_store(uri):
    with pytest.raises(ArgumentError):
        store_of(uri)
