"""Proxies that the environment wants, and the general client that can speak to them."""

from __future__ import annotations

import threading
from functools import lru_cache
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from demoreel.storage.far.wire import CONNECTIONS
from demoreel.storage.forks import renew_in_children
from demoreel.storage.quiet_logs import hide_signatures

if TYPE_CHECKING:
    from urllib3 import PoolManager


class _Pools:
    """Connections that stay open; every process has its own."""

    def __init__(self) -> None:
        self.renew()
        renew_in_children(self)

    def renew(self) -> None:
        """Begin anew in a forked child."""
        # A connection that two processes read from mixes up their answers.
        self.lock = threading.Lock()
        self.by_proxy: dict[str | None, Any] = {}


_pools = _Pools()


def pool_for(url: str) -> PoolManager:
    """Return the connections that serve a URL, through a proxy if the environment wants one."""
    import urllib3

    proxy = proxy_for(url)
    with _pools.lock:
        if proxy not in _pools.by_proxy:
            hide_signatures()
            options: dict[str, Any] = {"num_pools": 8, "maxsize": CONNECTIONS}
            _pools.by_proxy[proxy] = (
                urllib3.PoolManager(**options)
                if proxy is None
                else urllib3.ProxyManager(proxy, **options)
            )
        pool: PoolManager = _pools.by_proxy[proxy]
        return pool


def proxy_for(url: str) -> str | None:
    """Return the proxy that the environment wants for a URL."""
    parts = urlsplit(url)
    return _proxy_for(parts.scheme, parts.netloc)


@lru_cache(64)  # a look at the whole environment takes longer than a request
def _proxy_for(scheme: str, host: str) -> str | None:
    from urllib.request import getproxies, proxy_bypass  # heavy

    known = getproxies()
    return known[scheme] if scheme in known and not proxy_bypass(host) else None
