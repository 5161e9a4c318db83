"""The management API, where the project names one: it sees bindings, unacked messages, arguments. It takes nothing."""

import base64
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from http.client import HTTPException, HTTPResponse
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import quote, unquote, urlsplit
from urllib.request import HTTPRedirectHandler, OpenerDirector, Request, build_opener

from django_rmq_retry.broker.refusing import FORBIDDEN, MISSING, BrokerUnreachable
from django_rmq_retry.broker.urls import Secret
from django_rmq_retry.core.errors import BrokerRefused

UNAUTHORIZED = 401
LARGEST = 128 * 1024 * 1024
"""Bytes of an answer; a virtual host with fifty thousand queues is told in less."""
CHUNK = 65536
PATIENCE = 6
"""So many times its timeout an answer may take that comes in small pieces."""
Row = Mapping[str, Any]


class _Staying(HTTPRedirectHandler):
    """Follows nowhere: Python would take the login along to whatever place an answer names."""

    def redirect_request(self, *_told: Any, **_more: Any) -> None:
        return None


@cache
def _opener() -> OpenerDirector:
    """Made when it is needed: it reads the authorities of the whole system, and few processes ask at all."""
    return build_opener(_Staying)


@dataclass(frozen=True, slots=True, kw_only=True)
class Inspector:
    """Reads one virtual host: ``Inspector(url=Secret("http://app:secret@rabbit:15672"), vhost="pay")``."""

    url: Secret
    vhost: str = "/"
    timeout: float = 5.0

    @property
    def shown(self) -> str:
        """The URL as anybody may see it."""
        parts = urlsplit(self.url.reveal())
        user = f"{parts.username}@" if parts.username else ""
        return f"{parts.scheme}://{user}{parts.hostname}{f':{parts.port}' if parts.port else ''}{parts.path}"

    def queue(self, name: str) -> Row | None:
        return self._one("queues", name)

    def exchange(self, name: str) -> Row | None:
        return self._one("exchanges", name)

    def queues(self) -> dict[str, Row]:
        """Every queue of the virtual host by its name."""
        rows = self._get(f"queues/{quote(self.vhost, safe='')}")
        return {row["name"]: row for row in rows or []}

    def bindings(self) -> list[Row]:
        """Every binding of the virtual host but those that the default exchange has of itself."""
        rows = self._get(f"bindings/{quote(self.vhost, safe='')}")
        return [row for row in rows or [] if row["source"]]

    def _one(self, what: str, name: str) -> Row | None:
        found: Row | None = self._get(f"{what}/{quote(self.vhost, safe='')}/{quote(name, safe='')}")
        return found

    def _get(self, path: str) -> Any:
        parts = urlsplit(self.url.reveal())
        place = parts.netloc.rpartition("@")[2]
        request = Request(f"{parts.scheme}://{place}{parts.path.rstrip('/')}/api/{path}")  # noqa: S310  # settings: http(s)
        login = f"{unquote(parts.username or 'guest')}:{unquote(parts.password or 'guest')}"
        request.add_header("Authorization", "Basic " + base64.b64encode(login.encode()).decode())
        try:
            until = time.monotonic() + PATIENCE * self.timeout
            with _opener().open(request, timeout=self.timeout) as answer:
                return json.loads(_whole(answer, until))
        except HTTPError as error:
            if error.code == MISSING:
                return None
            if error.code in (UNAUTHORIZED, FORBIDDEN):
                reason = "the management API refuses this user, or its tag for that virtual host is missing"
                raise BrokerRefused(self.shown, reason) from None
            raise BrokerUnreachable(self.shown, f"the management API answers {error.code}") from None
        except (URLError, OSError, HTTPException, ValueError) as error:
            raise BrokerUnreachable(self.shown, f"the management API: {error}") from None


def _whole(answer: HTTPResponse, until: float) -> bytes:
    """All of an answer; neither without an end in its size nor in its time."""
    found = bytearray()
    while chunk := answer.read1(CHUNK):
        found += chunk
        if len(found) > LARGEST:
            raise ValueError(f"its answer has more than {LARGEST} bytes")
        if time.monotonic() > until:
            raise TimeoutError("its answer does not come to an end")
    return bytes(found)
