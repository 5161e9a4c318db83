"""The contents of queues: counts, bindings, and messages read without removing them."""

import base64
import time
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from http.client import HTTPException, HTTPResponse
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import quote, unquote, urlsplit
from urllib.request import HTTPRedirectHandler, OpenerDirector, Request, build_opener

from pika import BlockingConnection

from django_rmq_retry.amqp.address import Access, Secret
from django_rmq_retry.amqp.connection import parameters
from django_rmq_retry.amqp.frames import text_of
from django_rmq_retry.amqp.refusals import FORBIDDEN, MISSING, Refusal, error_text
from django_rmq_retry.amqp.rows import (
    BINDINGS,
    EXCHANGES,
    PERMISSIONS,
    QUEUES,
    Misshapen,
    Row,
    RowKind,
    decoded,
    row_of,
    rows_of,
)
from django_rmq_retry.amqp.session import Session, passively
from django_rmq_retry.amqp.sizes import UNROUTABLE
from django_rmq_retry.arguments import plural
from django_rmq_retry.errors import BrokerRefused, BrokerUnreachable, RmqRetryError
from django_rmq_retry.messages.message import Delivery
from django_rmq_retry.topology.declarations import QueueDeclaration

UNAUTHORIZED = 401
LARGEST_ANSWER_BYTES = 128 * 1024 * 1024
"""The largest accepted answer in bytes; that of a virtual host with fifty thousand queues is smaller."""
CHUNK_BYTES = 65536
LONGEST_ANSWER_TIMEOUTS = 6
"""The longest time for a whole answer that arrives in small pieces, in multiples of the timeout."""

LAG_SECONDS = 11.0
"""Seconds by which the management API may lag: it collects figures every 5 s and shows them with the next ones."""
_LOOK_SECONDS = 0.5
_REST_SECONDS, _REST_LOOK_SECONDS = 2.0, 0.05
"""Seconds to wait for a quorum queue to drop a basic.get client, which it counts as a consumer for a moment longer."""
_HIDDEN = ("messages_unacknowledged", "messages_dlx", "messages_delayed")


class StrangeAnswer(BrokerUnreachable):
    """The management API, or what answers in its place, did not return what was asked for."""

    def __init__(self, address: str, what: str, reason: str) -> None:
        super().__init__(address, f"the management API answered something that is not {what} ({reason})")
        text = f"The management API at {address} answered something that is not {what}: {reason}."
        self.args = (f"{text} Check RMQ_RETRY['OPERATORS']['MANAGEMENT_URL'].",)


class _Staying(HTTPRedirectHandler):
    """Follows no redirect: Python would send the credentials to any address that an answer names."""

    def redirect_request(self, *_redirect: Any, **_more: Any) -> None:
        return None


@cache
def _opener() -> OpenerDirector:
    """Make the opener at first use: it loads the system's CA certificates, and few processes need it."""
    return build_opener(_Staying)


@dataclass(frozen=True, slots=True, kw_only=True)
class Inspector:
    """A reader of one virtual host by the management API.

    ``Inspector(url=Secret("http://app:secret@rabbit:15672"), vhost="pay")``.
    """

    url: Secret
    vhost: str = "/"
    timeout: float = 5.0

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
        """Return every queue of the virtual host by its name."""
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
            return None if body is None else row_of(decoded(body), kind)
        except Misshapen as error:
            raise StrangeAnswer(self.shown, kind.one, str(error)) from None

    def _every(self, path: str, kind: RowKind) -> list[Row]:
        try:
            body = self._get(path)
            if body is None:
                # The broker has this virtual host, so its management API has the list.
                raise BrokerUnreachable(self.shown, f"the management API answers {MISSING}")
            return rows_of(decoded(body), kind)
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
            with _opener().open(request, timeout=self.timeout) as answer:
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


class WouldLose(RmqRetryError):
    """Refuses an operation that could lose messages."""

    def __init__(self, queue: str, reason: str) -> None:
        self.queue = queue
        self.reason = reason
        super().__init__(f"Queue {queue!r} was left as it is: {reason}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """The messages and consumers of one queue."""

    queue: str
    ready: int
    consumers: int
    hidden: int | None = None
    """The number of messages that are unacked, delayed or in flight as dead letters; None if it is unknown."""

    @property
    def empty(self) -> bool:
        return not self.ready and not self.hidden

    def refuse_use(self) -> None:
        """Raise WouldLose if the queue has consumers or messages in flight."""
        if self.consumers:
            raise WouldLose(self.queue, f"it has {plural(self.consumers, 'consumer')}. Stop them first.")
        if self.hidden:
            raise WouldLose(
                self.queue,
                f"{plural(self.hidden, 'message')} of it are in a consumer's hand or on their way to another queue. "
                "Wait until they are settled.",
            )

    def refuse_messages(self, advice: str) -> None:
        if self.ready:
            raise WouldLose(self.queue, f"it holds {plural(self.ready, 'message')}. {advice}")


def look(session: Session, inspector: Inspector | None, queue: str) -> Holding | None:
    """Return the queue's messages and consumers; None if it does not exist. Other refusals are raised."""
    return counted(session, None if inspector is None else inspector.queue(queue), queue)


def counted(session: Session, row: Row | None, queue: str) -> Holding | None:
    """Return the same as ``look`` for a row that the management API has already returned."""
    try:
        answer = session.ask(passively(QueueDeclaration(name=queue))).method
    except Refusal as refusal:
        if refusal.missing:
            return None
        # From RabbitMQ 4.3 on, a passive declaration needs a permission on that name.
        if not refusal.forbidden or row is None:
            raise
        return Holding(
            queue=queue, ready=row.get("messages_ready", 0), consumers=row.get("consumers", 0), hidden=_hidden(row)
        )
    return Holding(queue=queue, ready=answer.message_count, consumers=answer.consumer_count, hidden=_hidden(row))


def look_at_rest(session: Session, inspector: Inspector | None, queue: str) -> Holding | None:
    """Return the same as ``look``, but first wait a moment for consumers that may be leaving."""
    deadline = time.monotonic() + _REST_SECONDS
    while True:
        holding = look(session, inspector, queue)
        if holding is None or not holding.consumers or time.monotonic() > deadline:
            return holding
        time.sleep(_REST_LOOK_SECONDS)


def refused_read(session: Session, queue: str) -> Refusal | None:
    """Return the refusal if the user may not consume this queue.

    Nothing is consumed: RabbitMQ checks the permission first, and then refuses a priority that is no number.
    """
    try:
        session.ask(
            lambda channel, done: channel.basic_consume(
                queue, lambda *_: None, callback=done, arguments={"x-priority": "none"}
            )
        )
    except Refusal as refusal:
        return refusal if refusal.forbidden else None
    session.channel().close()
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishTest:
    """The broker's answer to a message for no queue."""

    refusal: Refusal | None = None
    blocked: str = ""
    """The reason why the broker blocks connections that publish."""


def try_publish(session: Session) -> PublishTest:
    """Publish a message that no queue takes to the default exchange. If it is blocked, the session answers no more."""
    blocked: list[str] = []
    answers: list[object] = []
    session.connection.add_on_connection_blocked_callback(
        lambda _connection, frame: blocked.append(text_of(frame.method.reason or "") or "unknown")
    )
    channel = session.channel()
    channel.basic_publish("", UNROUTABLE, b"")
    channel.basic_qos(prefetch_count=1, callback=answers.append)
    try:
        session.wait(lambda: answers or blocked, channel)
    except Refusal as refusal:
        return PublishTest(refusal=refusal)
    return PublishTest(blocked=next(iter(blocked), ""))


def watch(session: Session, inspector: Inspector | None, queues: Iterable[str]) -> dict[str, Holding]:
    """Return the queues that exist, checked until the management API's lag has passed or none of them is idle."""
    seen = {queue: look_at_rest(session, inspector, queue) for queue in queues}
    for _ in range(round(LAG_SECONDS / _LOOK_SECONDS) if inspector is not None else 0):
        idle = [queue for queue, found in seen.items() if found and not found.consumers and not found.hidden]
        if not idle:
            break
        time.sleep(_LOOK_SECONDS)
        seen |= {queue: look(session, inspector, queue) for queue in idle}
    return {queue: found for queue, found in seen.items() if found is not None}


def _hidden(row: Row | None) -> int | None:
    # A queue that was just created has no figures yet.
    if row is None or row.get("messages") is None:
        return None
    return sum(row.get(name) or 0 for name in _HIDDEN)


def returning(number: int, queue: str) -> str:
    """Return ``1 message in 'a.retry.1m' comes back to it``."""
    return f"{plural(number, 'message')} in {queue!r} {'comes' if number == 1 else 'come'} back to it"


def peek(access: Access, queue: str) -> list[Delivery]:
    """Return the messages of a queue in their order; each counts as redelivered from now on."""
    deliveries: list[Delivery] = []
    connection = BlockingConnection(parameters(access, access.current().hosts[0], purpose="peek"))
    try:
        channel = connection.channel()
        while True:
            method, properties, body = channel.basic_get(queue)
            if method is None or properties is None:
                return deliveries
            deliveries.append(
                Delivery(
                    queue=queue,
                    body=body or b"",
                    raw=b"".join(properties.encode()),
                    exchange=text_of(method.exchange or ""),
                    routing_key=text_of(method.routing_key or ""),
                    redelivered=method.redelivered,
                )
            )
    finally:
        connection.close()
