"""The broker of the demo: the embedded one, or a RabbitMQ that RMQ_URL names."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from django_rmq_retry.amqp.address import EMBEDDED, Secret, Url, read_url
from django_rmq_retry.errors import ConfigurationError
from testproject.playing.ending import Trouble
from testproject.playing.vhosts import Api, vhost_by

DEFAULT = "/"


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The broker of one demo."""

    url: str
    description: str
    embedded: bool = False


@contextmanager
def place(named: str, folder: Path) -> Iterator[Place]:
    """Use the broker in RMQ_URL, in a new virtual host unless it names one; without RMQ_URL the embedded broker."""
    url = _read(named or f"{EMBEDDED}://")
    if url.scheme == EMBEDDED:
        where = url.folder or str(folder / "broker")
        yield Place(
            url=f"{EMBEDDED}://{where}", description="the embedded broker; no RabbitMQ is needed", embedded=True
        )
    elif url.vhost != DEFAULT:
        yield Place(url=named, description=f"the virtual host {url.vhost} of {url.hosts[0]}")
    else:
        with vhost_by(_api(url)) as vhost:
            yield _in(vhost, named, url)


def _read(url: str) -> Url:
    try:
        return read_url(Secret(url))
    except ConfigurationError as error:
        raise Trouble(f"RMQ_URL: {error}") from error


def _api(url: Url) -> Api:
    """Return the management API in RMQ_OPERATORS_MANAGEMENT_URL, or the one on the broker's host and the usual port."""
    usual = f"http://{url.hosts[0].name}:15672"
    password = url.password.reveal() if url.password else os.environ.get("RMQ_PASSWORD", "guest")
    named = os.environ.get("RMQ_OPERATORS_MANAGEMENT_URL")
    return Api.named(named or usual, user=url.user or "guest", password=password)


def _in(vhost: str | None, named: str, url: Url) -> Place:
    if vhost is None:
        text = f"the virtual host {DEFAULT} of {url.hosts[0]}, where no management API makes one for it"
        return Place(url=named, description=text)
    own = urlsplit(named)._replace(path=f"/{vhost}").geturl()
    return Place(url=own, description=f"a virtual host of its own, {vhost}, of {url.hosts[0]}")
