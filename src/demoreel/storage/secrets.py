"""Secrets that a user hands over in a call: known to this process and its children only.

A pickle may end up anywhere: on a disk, in a queue of another machine, in a log. So what is pickled
carries a name in place of a secret, and the secret stands in this process's environment under that
name, where processes that it starts find it, as they find ``AWS_SECRET_ACCESS_KEY``.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping

from demoreel.errors import ArgumentError

_PREFIX = "DEMOREEL_SECRET_"


def keep_secrets(secrets: Mapping[str, str]) -> str:
    """Keep secrets for this process and those that it starts; return the name they go by."""
    text = json.dumps(dict(secrets), sort_keys=True)
    name = hashlib.sha256(text.encode()).hexdigest()[:24]
    os.environ[_PREFIX + name] = text
    return name


def recall_secrets(name: str) -> dict[str, str]:
    """Return the secrets that go by this name.

    Raises:
        ArgumentError: They are not known here: this process descends from another.
    """
    text = os.environ.get(_PREFIX + name)
    if text is None:
        raise ArgumentError(
            "The credentials that were given in storage_options= are not known to this process: "
            "they do not travel in pickles.",
            hint="put them into the environment of every machine, or open the dataset there",
        )
    return {str(key): str(value) for key, value in json.loads(text).items()}
