"""A thin client of RabbitMQ's management API, for the tests' own looking."""

import base64
import json
from dataclasses import dataclass
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import quote, unquote, urlsplit
from urllib.request import Request, urlopen

HTTP_NOT_FOUND = 404


@dataclass(frozen=True, slots=True, kw_only=True)
class Management:
    """The API at `url`, as the user named there."""

    url: str

    @property
    def place(self) -> str:
        """Host and port, without the password."""
        parts = urlsplit(self.url)
        return f"{parts.hostname}:{parts.port}"

    def call(self, method: str, path: str, body: object = None) -> Any:
        """One request; the decoded answer, or None where there is none."""
        parts = urlsplit(self.url)
        request = Request(f"http://{self.place}/api/{path}", method=method)
        login = f"{unquote(parts.username or 'guest')}:{unquote(parts.password or 'guest')}"
        request.add_header("Authorization", "Basic " + base64.b64encode(login.encode()).decode())
        request.add_header("Content-Type", "application/json")
        data = None if body is None else json.dumps(body).encode()
        with urlopen(request, data, timeout=30) as answer:  # noqa: S310 - http, a few lines above
            text = answer.read()
        return json.loads(text) if text else None

    def version(self) -> str | None:
        """The broker's version, or None if nobody answers."""
        try:
            return str(self.call("GET", "overview")["rabbitmq_version"])
        except (URLError, OSError):
            return None

    def create_vhost(self, name: str) -> None:
        """Make a virtual host; its maker may do everything there."""
        user = unquote(urlsplit(self.url).username or "guest")
        self.call("PUT", f"vhosts/{quote(name, safe='')}", {})
        everything = {"configure": ".*", "write": ".*", "read": ".*"}
        self.call("PUT", f"permissions/{quote(name, safe='')}/{quote(user, safe='')}", everything)

    def delete_vhost(self, name: str) -> None:
        """Delete a virtual host with all that is in it; one that is gone already is fine."""
        try:
            self.call("DELETE", f"vhosts/{quote(name, safe='')}")
        except HTTPError as error:
            if error.code != HTTP_NOT_FOUND:
                raise

    def vhosts(self) -> list[str]:
        """The names of all virtual hosts."""
        return [row["name"] for row in self.call("GET", "vhosts?columns=name")]
