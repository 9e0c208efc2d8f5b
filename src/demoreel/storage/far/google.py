"""Whether links to Google's storage can be signed here.

Without a service account's key Google would be asked to sign: a request for every object, by a
right that few accounts have. Ranges are then read with the account's own token instead.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

_KEYS = ("service_account_key",)
_PATHS = ("service_account", "service_account_path", "application_credentials")


def has_key(options: Mapping[str, str]) -> bool:
    """Whether a service account's private key is at hand.

    Args:
        options: What the user says about the store; the environment is looked at besides.
    """
    for name in _KEYS:
        for text in _said(name, options):
            if _holds_key(text):
                return True
    for name in _PATHS:
        for path in _said(name, options):
            try:
                text = Path(path).expanduser().read_text()
            except (OSError, ValueError):
                continue
            if _holds_key(text):
                return True
    return False


def _said(name: str, options: Mapping[str, str]) -> list[str]:
    found = (
        options.get(name),
        options.get(f"google_{name}"),
        os.environ.get(f"GOOGLE_{name.upper()}"),
    )
    return [text for text in found if text]


def _holds_key(text: str) -> bool:
    try:
        account = json.loads(text)
    except ValueError:
        return False
    return (
        isinstance(account, dict)
        and bool(account.get("private_key"))
        and not account.get("disable_oauth")
    )
