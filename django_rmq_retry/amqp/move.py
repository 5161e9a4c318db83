"""Moves the messages of a queue to another one, each confirmed there before it is acknowledged here."""

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from pika import spec

from django_rmq_retry.amqp.frames import RawProperties, marshal_publish
from django_rmq_retry.amqp.refusals import above
from django_rmq_retry.amqp.session import Session
from django_rmq_retry.errors import RmqRetryError, UndecodableHeaders
from django_rmq_retry.messages.deaths import rejections
from django_rmq_retry.messages.header_names import BARE, BROKERS_OWN, PREFIX
from django_rmq_retry.messages.properties import DIRECT, decode_properties, encode_properties
from django_rmq_retry.messages.stamp import Stamp

MOST_UNCONFIRMED = 200
EXPIRATION = PREFIX + "expiration"
_MILLISECONDS = re.compile(r"[0-9]{1,12}")
Change = Callable[[bytes], bytes]
Got = tuple[spec.Basic.GetOk, RawProperties, bytes]


class MoveStopped(RmqRetryError):
    """The broker did not accept a copy; messages already moved stay moved, the others are still in their queue."""

    def __init__(self, source: str, target: str, reason: str) -> None:
        self.source = source
        self.target = target
        super().__init__(f"Moving {source!r} to {target!r} stopped: {reason} No message was lost; run it again.")


class Move:
    """Moves messages until the queue is empty: ``Move(session, "a", "b", change=for_good("a")).run()``."""

    def __init__(self, session: Session, source: str, target: str, *, change: Change) -> None:
        self.moved = 0
        self._session = session
        self._source = source
        self._target = target
        self._change = change
        self._channel = session.new_channel()
        self._sent = 0
        self._pending: dict[int, int] = {}
        self._got: list[Got | None] = []
        self._failure = ""

    def run(self) -> int:
        try:
            self._begin()
            while (got := self._next()) is not None:
                self._copy(*got)
                self._wait(lambda: len(self._pending) < MOST_UNCONFIRMED)
            self._wait(lambda: not self._pending)
        finally:
            self._end()
        return self.moved

    def _begin(self) -> None:
        ready: list[object] = []
        channel = self._channel
        channel.add_on_return_callback(lambda _channel, method, *_: self._fail(f"{method.reply_text}."))
        channel.add_callback(lambda _: self._got.append(None), [spec.Basic.GetEmpty], one_shot=False)
        channel.confirm_delivery(self._confirmed, callback=ready.append)
        self._wait(lambda: ready)

    def _next(self) -> Got | None:
        def got(_channel: object, method: spec.Basic.GetOk, properties: Any, body: bytes) -> None:
            self._got.append((method, properties, body))

        self._channel.basic_get(self._source, got)
        self._wait(lambda: self._got)
        return self._got.pop()

    def _copy(self, method: spec.Basic.GetOk, properties: RawProperties, body: bytes) -> None:
        connection = self._session.connection
        self._check_size(len(body))
        data = marshal_publish(
            self._channel.channel_number,
            self._change(properties.raw),
            body,
            exchange="",
            routing_key=self._target,
            mandatory=True,
            frame_max=connection.frame_max,
        )
        self._sent += 1
        self._pending[self._sent] = method.delivery_tag or 0
        connection.send_raw(data)

    def _check_size(self, size: int) -> None:
        """Test the size first: a copy too large closes the channel and duplicates messages confirmed but not acked."""
        sizes = self._session.connection.sizes
        if size > sizes.accepted and sizes.limit is None:
            answered: list[bool] = []
            sizes.test(size, lambda: answered.append(True))
            self._wait(lambda: answered)
        if sizes.limit is not None and size > sizes.limit:
            self._wait(lambda: not self._pending)
            self._fail(f"{above(size, sizes.limit)}: raise max_message_size there.")
            self._wait(lambda: None)

    def _confirmed(self, frame: Any) -> None:
        method = frame.method
        if isinstance(method, spec.Basic.Nack):
            self._fail("the queue there refuses a copy.")
        if self._failure:
            # A copy confirmed after a failure becomes a duplicate, because its original is requeued: that is accepted.
            return
        tag = method.delivery_tag
        for one in [number for number in self._pending if number <= tag] if method.multiple else [tag]:
            self._channel.basic_ack(self._pending.pop(one))
            self.moved += 1

    def _fail(self, reason: str) -> None:
        self._failure = self._failure or reason

    def _wait(self, ready: Callable[[], object]) -> None:
        self._session.wait(lambda: self._failure or ready(), self._channel)
        if self._failure:
            raise MoveStopped(self._source, self._target, self._failure)

    def _end(self) -> None:
        """Close the channel: unacked messages are requeued, and acks already sent take effect before."""
        if self._channel.is_open:
            self._channel.close()
            self._session.wait(lambda: self._channel.is_closed)


def for_good(queue: str) -> Change:
    """Return the change of properties when messages leave this queue permanently."""
    return lambda raw: _leaving(raw, queue, keep={})


def aside(queue: str) -> Change:
    """Return the change of properties while messages are away: none may expire, so a header keeps the expiration."""

    def change(raw: bytes) -> bytes:
        try:
            expiration = decode_properties(raw).expiration
        except UndecodableHeaders:
            return raw
        return _leaving(raw, queue, keep={} if expiration is None else {EXPIRATION: expiration})

    return change


def _leaving(raw: bytes, queue: str, *, keep: dict[str, object]) -> bytes:
    try:
        properties = decode_properties(raw)
        put = dict(keep)
        # A copy starts a new x-death: its count is kept in a header of ours, which the carriers (the ways in which a
        # retry waits) read.
        counted = rejections(properties.headers, queue)
        if counted:
            put[PREFIX + "attempts"] = Stamp.read(properties.headers).attempts + counted
        if properties.reply_to == DIRECT:
            properties, put[BARE] = replace(properties, reply_to=None), DIRECT
        headers = properties.headers.replacing(drop=BROKERS_OWN | {EXPIRATION} | put.keys(), put=put)
    except UndecodableHeaders:
        return raw
    expiration = None if keep else properties.expiration
    return encode_properties(replace(properties, expiration=expiration, user_id=None, headers=headers))


def back(raw: bytes) -> bytes:
    """Return the properties of a message on its way back; its own expiration starts again from the full time."""
    if EXPIRATION.encode() not in raw:
        return raw
    try:
        properties = decode_properties(raw)
        expiration = properties.headers.get(EXPIRATION)
        headers = properties.headers.replacing(drop={EXPIRATION}, put={})
    except UndecodableHeaders:
        return raw
    # A sender may have put an invalid value there. The broker would refuse it, and no message could be moved.
    known = expiration if isinstance(expiration, str) and _MILLISECONDS.fullmatch(expiration) else properties.expiration
    return encode_properties(replace(properties, expiration=known, headers=headers))
