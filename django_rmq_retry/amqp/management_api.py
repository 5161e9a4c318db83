"""RabbitMQ's management API: the queues, exchanges, bindings and permissions of a virtual host."""

import base64
import time
from dataclasses import dataclass
from http.client import HTTPException, HTTPResponse
from urllib.error import HTTPError, URLError
from urllib.parse import quote, unquote, urlsplit
from urllib.request import Request

from django_rmq_retry.amqp.address import Secret
from django_rmq_retry.amqp.refusals import FORBIDDEN, MISSING, error_text
from django_rmq_retry.amqp.rows import (
    BINDINGS,
    EXCHANGES,
    PERMISSIONS,
    QUEUES,
    Misshapen,
    Row,
    RowKind,
    json_of,
    row_of,
    rows_of,
)
from django_rmq_retry.errors import BrokerRefused, BrokerUnreachable
from django_rmq_retry.http_requests import opener

UNAUTHORIZED = 401
LARGEST_ANSWER_BYTES = 128 * 1024 * 1024
"""The largest accepted answer in bytes; that of a virtual host with fifty thousand queues is smaller."""
CHUNK_BYTES = 65536
API_ANSWER_SECONDS = 5.0
"""Seconds for each step of an answer."""
LONGEST_ANSWER_TIMEOUTS = 6
"""The longest time for a whole answer that arrives in small pieces, in multiples of the timeout."""


class StrangeAnswer(BrokerUnreachable):
    """The management API, or what answers in its place, did not return what was asked for."""

    def __init__(self, address: str, what: str, reason: str) -> None:
        super().__init__(address, f"the management API answered something that is not {what} ({reason})")
        text = f"The management API at {address} answered something that is not {what}: {reason}."
        self.args = (f"{text} Check RMQ_RETRY['OPERATORS']['MANAGEMENT_URL'].",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Inspector:
    """A reader of one virtual host: ``Inspector(url=Secret("http://app:secret@rabbit:15672"), vhost="pay")``."""

    url: Secret
    vhost: str = "/"
    timeout: float = API_ANSWER_SECONDS

    @property
    def shown(self) -> str:
        """The URL without the password."""
        parts = urlsplit(self.url.reveal())
        user = f"{parts.username}@" if parts.username else ""
        return f"{parts.scheme}://{user}{parts.hostname}{f':{parts.port}' if parts.port else ''}{parts.path}"

    def queue(self, name: str) -> Row | None:
        return self._one(f"queues/{self._here}/{quote(name, safe='')}", QUEUES)

    def exchange(self, name: str) -> Row | None:
        return self._one(f"exchanges/{self._here}/{quote(name, safe='')}", EXCHANGES)

    def queues(self) -> dict[str, Row]:
        return {row["name"]: row for row in self._every(f"queues/{self._here}", QUEUES)}

    def bindings(self) -> list[Row]:
        """Return every binding of the virtual host except the default exchange's implicit ones."""
        return [row for row in self._every(f"bindings/{self._here}", BINDINGS) if row["source"]]

    def permission(self, user: str) -> Row | None:
        """Return the patterns of a user's permissions; the API's own user needs the tag ``administrator``."""
        return self._one(f"permissions/{self._here}/{quote(user, safe='')}", PERMISSIONS)

    @property
    def _here(self) -> str:
        return quote(self.vhost, safe="")

    def _one(self, path: str, kind: RowKind) -> Row | None:
        try:
            body = self._get(path)
            return None if body is None else row_of(json_of(body), kind)
        except Misshapen as error:
            raise StrangeAnswer(self.shown, kind.one, str(error)) from None

    def _every(self, path: str, kind: RowKind) -> list[Row]:
        try:
            body = self._get(path)
            if body is None:
                # The broker has this virtual host, so its management API has the list.
                raise BrokerUnreachable(self.shown, f"the management API answers {MISSING}")
            return rows_of(json_of(body), kind)
        except Misshapen as error:
            raise StrangeAnswer(self.shown, kind.many, str(error)) from None

    def _get(self, path: str) -> bytes | None:
        """Return the body of the answer; None if the API does not have that object."""
        parts = urlsplit(self.url.reveal())
        place = parts.netloc.rpartition("@")[2]
        request = Request(f"{parts.scheme}://{place}{parts.path.rstrip('/')}/api/{path}")  # noqa: S310  # settings: http(s)
        login = f"{unquote(parts.username or 'guest')}:{unquote(parts.password or 'guest')}"
        request.add_header("Authorization", "Basic " + base64.b64encode(login.encode()).decode())
        try:
            until = time.monotonic() + LONGEST_ANSWER_TIMEOUTS * self.timeout
            with opener().open(request, timeout=self.timeout) as answer:
                return _whole(answer, until)
        except HTTPError as error:
            error.close()  # it holds the connection, and stays with the exception that is raised in its place
            if error.code == MISSING:
                return None
            if error.code in (UNAUTHORIZED, FORBIDDEN):
                reason = "the management API refuses this user, or its tag for that virtual host is missing"
                raise BrokerRefused(self.shown, reason) from None
            raise BrokerUnreachable(self.shown, f"the management API answers {error.code}") from None
        except URLError as error:
            raise BrokerUnreachable(self.shown, f"the management API: {error_text(error.reason)}") from None
        except (OSError, HTTPException, ValueError) as error:
            raise BrokerUnreachable(self.shown, f"the management API: {error_text(error)}") from None


def _whole(answer: HTTPResponse, until: float) -> bytes:
    """Return the whole answer; its size and its time are limited."""
    body = bytearray()
    while chunk := answer.read1(CHUNK_BYTES):
        body += chunk
        if len(body) > LARGEST_ANSWER_BYTES:
            raise ValueError(f"its answer has more than {LARGEST_ANSWER_BYTES} bytes")
        if time.monotonic() > until:
            raise TimeoutError("its answer does not come to an end")
    return bytes(body)
