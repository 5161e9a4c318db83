"""A virtual host for the demo, created through a RabbitMQ's management API."""

import base64
import json
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPException
from urllib.parse import quote, unquote, urlsplit
from urllib.request import Request, urlopen

from testproject.playing.ending import Trouble

PATIENCE = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Api:
    """The management API at ``place``, with a user."""

    place: str
    user: str
    password: str

    @classmethod
    def named(cls, url: str, *, user: str, password: str) -> "Api":
        """Return the API at a URL, with the URL's user or else the given one."""
        parts = urlsplit(url)
        host = parts.netloc.rpartition("@")[2]
        if parts.username is not None:
            user, password = unquote(parts.username), unquote(parts.password or "")
        return cls(place=f"{parts.scheme}://{host}{parts.path.rstrip('/')}", user=user, password=password)

    def ask(self, method: str, path: str, body: object = None) -> None:
        """Send one request; raise OSError or HTTPException if it fails."""
        request = Request(f"{self.place}/api/{path}", method=method)  # noqa: S310 - a broker that the user named
        login = base64.b64encode(f"{self.user}:{self.password}".encode()).decode()
        request.add_header("Authorization", f"Basic {login}")
        request.add_header("Content-Type", "application/json")
        data = None if body is None else json.dumps(body).encode()
        with urlopen(request, data, timeout=PATIENCE):  # noqa: S310 - the same
            pass


@contextmanager
def vhost_by(api: Api) -> Iterator[str | None]:
    """Create a virtual host and yield its name; delete it afterwards. None if the API cannot create one."""
    name = f"bank-demo-{secrets.token_hex(4)}"
    created = _made(api, name)
    try:
        yield name if created else None
    finally:
        if created:
            _delete(api, name)


def _made(api: Api, name: str) -> bool:
    everything = {"configure": ".*", "write": ".*", "read": ".*"}
    try:
        api.ask("PUT", f"vhosts/{name}", {})
        api.ask("PUT", f"permissions/{name}/{quote(api.user, safe='')}", everything)
    except (OSError, HTTPException, ValueError):
        return False
    return True


def _delete(api: Api, name: str) -> None:
    try:
        api.ask("DELETE", f"vhosts/{name}")
    except (OSError, HTTPException) as error:
        raise Trouble(
            f"The virtual host {name} is left: the management API at {api.place} did not delete it ({error}). "
            f"`rabbitmqctl delete_vhost {name}` does."
        ) from error
