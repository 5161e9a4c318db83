"""A thin client of RabbitMQ's management API."""

import base64
import json
from dataclasses import dataclass
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import quote, unquote, urlsplit
from urllib.request import Request, urlopen

HTTP_NOT_FOUND = 404


@dataclass(frozen=True, slots=True, kw_only=True)
class Management:
    """The API at `url`, with the user in it."""

    url: str

    @property
    def place(self) -> str:
        """Host and port, without the password."""
        parts = urlsplit(self.url)
        return f"{parts.hostname}:{parts.port}"

    def call(self, method: str, path: str, body: object = None) -> Any:
        """Send one request; return the decoded answer, or None without one."""
        parts = urlsplit(self.url)
        request = Request(f"http://{self.place}/api/{path}", method=method)
        login = f"{unquote(parts.username or 'guest')}:{unquote(parts.password or 'guest')}"
        request.add_header("Authorization", "Basic " + base64.b64encode(login.encode()).decode())
        request.add_header("Content-Type", "application/json")
        data = None if body is None else json.dumps(body).encode()
        try:
            with urlopen(request, data, timeout=30) as answer:  # noqa: S310 - http, a few lines above
                text = answer.read()
        except HTTPError as error:
            error.close()
            raise
        return json.loads(text) if text else None

    def version(self) -> str | None:
        """Return the broker's version, or None without an answer."""
        try:
            return str(self.call("GET", "overview")["rabbitmq_version"])
        except (URLError, OSError, HTTPException):
            return None

    def create_vhost(self, name: str) -> None:
        """Create a virtual host; its creator has every permission there."""
        user = unquote(urlsplit(self.url).username or "guest")
        self.call("PUT", f"vhosts/{quote(name, safe='')}", {})
        everything = {"configure": ".*", "write": ".*", "read": ".*"}
        self.call("PUT", f"permissions/{quote(name, safe='')}/{quote(user, safe='')}", everything)

    def delete_vhost(self, name: str) -> None:
        """Delete a virtual host with its content; a missing one is ignored."""
        self.delete(f"vhosts/{quote(name, safe='')}")

    def delete(self, path: str) -> None:
        """Delete what may be gone already."""
        try:
            self.call("DELETE", path)
        except HTTPError as error:
            if error.code != HTTP_NOT_FOUND:
                raise

    def vhosts(self) -> list[str]:
        """The names of all virtual hosts."""
        return [row["name"] for row in self.call("GET", "vhosts?columns=name")]
