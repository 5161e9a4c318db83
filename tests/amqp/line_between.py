"""A line to the broker that a test can silence and cut."""

from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

from tests.tooling.proxy import Mode, Proxy, proxy_to


class Between:
    """The broker through a proxy."""

    def __init__(self, url: str, proxy: Proxy) -> None:
        self.url = url.replace(f":{urlsplit(url).port}/", f":{proxy.port}/")
        self._proxy = proxy

    @property
    def accepted(self) -> int:
        """The number of connections made so far."""
        return len(self._proxy._pairs)

    def silence(self) -> None:
        """From now on the broker receives everything, and nothing reaches the client."""
        self._proxy.set(Mode.BLACKHOLE_TO_CLIENT)

    def swallow(self) -> None:
        """From now on nothing passes, neither way."""
        self._proxy.set(Mode.BLACKHOLE)

    def slow(self) -> None:
        """From now on each 64 KiB take 0.1 s."""
        self._proxy.set(Mode.DELAY)

    def speak(self) -> None:
        """Everything passes again, also what was held back on connections that are still open."""
        self._proxy.set(Mode.PASS)

    def hang_up(self) -> None:
        """End every connection behind what the broker has sent."""
        self._proxy.set(Mode.HALF_CLOSE)

    def cut(self) -> None:
        """Reset every connection."""
        self._proxy.set(Mode.RST)


@contextmanager
def between(url: str) -> Iterator[Between]:
    with proxy_to(urlsplit(url).port or 5672) as proxy:
        yield Between(url, proxy)
