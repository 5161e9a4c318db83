"""The management API, where the project names one: it sees bindings, unacked messages, arguments. It takes nothing."""

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import quote, unquote, urlsplit
from urllib.request import Request, urlopen

from django_rmq_retry.broker.refusing import FORBIDDEN, MISSING, BrokerUnreachable
from django_rmq_retry.broker.urls import Secret
from django_rmq_retry.core.errors import BrokerRefused

UNAUTHORIZED = 401
Row = Mapping[str, Any]


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
            with urlopen(request, timeout=self.timeout) as answer:  # noqa: S310  # settings: http(s)
                return json.load(answer)
        except HTTPError as error:
            if error.code == MISSING:
                return None
            if error.code in (UNAUTHORIZED, FORBIDDEN):
                reason = "the management API refuses this user, or its tag for that virtual host is missing"
                raise BrokerRefused(self.shown, reason) from None
            raise BrokerUnreachable(self.shown, f"the management API answers {error.code}") from None
        except (URLError, OSError, HTTPException, ValueError) as error:
            raise BrokerUnreachable(self.shown, f"the management API: {error}") from None
