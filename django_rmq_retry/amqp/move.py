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
from django_rmq_retry.messages.stamp import STAMP_HEADERS, Stamp

MOST_UNCONFIRMED = 200
EXPIRATION = PREFIX + "expiration"
_MILLISECONDS = re.compile(r"[0-9]{1,12}")
Rewrite = Callable[[bytes], bytes]
Fetched = tuple[spec.Basic.GetOk, RawProperties, bytes]


class MoveStopped(RmqRetryError):
    """The broker did not accept a copy; messages already moved stay moved, the others are still in their queue."""

    def __init__(self, source: str, target: str, reason: str) -> None:
        self.source = source
        self.target = target
        super().__init__(f"Moving {source!r} to {target!r} stopped: {reason} No message was lost; run it again.")


class CopyFailed(Exception):
    """The broker did not accept a copy; the text is a sentence."""

    def __init__(self, reason: str, *, full: bool = False) -> None:
        self.reason = reason
        self.full = full
        """True if the queue there refuses further messages for now."""
        super().__init__(reason)


class Copier:
    """Copies messages that are unacked on a channel; each original is acked when its copy is confirmed.

    ``done`` is called with the delivery tag of each original that was acked.
    """

    def __init__(self, session: Session, done: Callable[[int], object]) -> None:
        self.channel = session.new_channel()
        self._done = done
        self._session = session
        self._sent = 0
        self._pending: dict[int, int] = {}
        self._failure: CopyFailed | None = None
        self._returned = False

    def begin(self) -> None:
        ready: list[object] = []
        channel = self.channel
        channel.add_on_return_callback(lambda _channel, method, *_: self._return(f"{method.reply_text}."))
        channel.confirm_delivery(self._answered, callback=ready.append)
        self.wait(lambda: ready)

    def copy(self, tag: int, raw: bytes, body: bytes, *, exchange: str, routing_key: str) -> None:
        connection = self._session.connection
        self._check_size(len(body))
        data = marshal_publish(
            self.channel.channel_number,
            raw,
            body,
            exchange=exchange,
            routing_key=routing_key,
            mandatory=True,
            frame_max=connection.frame_max,
        )
        self._sent += 1
        self._pending[self._sent] = tag
        connection.send_raw(data)
        self.wait(lambda: len(self._pending) < MOST_UNCONFIRMED)

    def settle(self) -> None:
        """Wait until all copies are confirmed and the acks of their originals are written.

        The next use of the connection may be far: an original whose ack waits for it would return, a second time.
        """
        self.wait(lambda: not self._pending and self._session.connection.all_written)

    def wait(self, ready: Callable[[], object]) -> None:
        """Run the loop until ``ready()``; raise CopyFailed if the broker does not accept a copy.

        It refuses one at once that does not fit, and confirms those before it once they are stored: they are waited
        for, as the original of each that was taken would return, and its message would be handled twice.
        """
        self._session.wait(lambda: self._failure or ready(), self.channel)
        if self._failure:
            written = self._session.connection
            self._session.wait(lambda: self._returned or (not self._pending and written.all_written), self.channel)
            raise self._failure

    def end(self) -> None:
        """Close the channel: unacked messages are requeued, and acks already sent take effect before."""
        if self.channel.is_open:
            self.channel.close()
            self._session.wait(lambda: self.channel.is_closed)

    def _check_size(self, size: int) -> None:
        """Test the size first: a copy too large closes the channel and duplicates messages confirmed but not acked."""
        sizes = self._session.connection.sizes
        if size > sizes.accepted and sizes.limit is None:
            answered: list[bool] = []
            sizes.test(size, lambda: answered.append(True))
            self.wait(lambda: answered)
        if sizes.limit is not None and size > sizes.limit:
            self.settle()
            raise CopyFailed(f"{above(size, sizes.limit)}: raise max_message_size there.")

    def _answered(self, frame: Any) -> None:
        method = frame.method
        refused = isinstance(method, spec.Basic.Nack)
        if refused:
            self._failure = self._failure or CopyFailed("the queue there refuses a copy.", full=True)
        if self._returned:
            # The copy that was returned is confirmed too: it is not known which one that is, so all originals stay.
            return
        tag = method.delivery_tag
        for one in [number for number in self._pending if number <= tag] if method.multiple else [tag]:
            original = self._pending.pop(one)
            if not refused:
                self.channel.basic_ack(original)
                self._done(original)

    def _return(self, reason: str) -> None:
        self._returned = True
        self._failure = self._failure or CopyFailed(reason)


class Move:
    """Moves messages until the queue is empty: ``Move(session, "a", "b", change=for_good("a")).run()``."""

    def __init__(self, session: Session, source: str, target: str, *, change: Rewrite) -> None:
        self.moved = 0
        self._source = source
        self._target = target
        self._change = change
        self._copier = Copier(session, self._count)
        self._got: list[Fetched | None] = []

    def run(self) -> int:
        copies = self._copier
        try:
            copies.channel.add_callback(lambda _: self._got.append(None), [spec.Basic.GetEmpty], one_shot=False)
            copies.begin()
            while (got := self._next()) is not None:
                method, properties, body = got
                raw = self._change(properties.raw)
                copies.copy(method.delivery_tag or 0, raw, body, exchange="", routing_key=self._target)
            copies.settle()
        except CopyFailed as failed:
            raise MoveStopped(self._source, self._target, failed.reason) from failed
        finally:
            copies.end()
        return self.moved

    def _count(self, _tag: int) -> None:
        self.moved += 1

    def _next(self) -> Fetched | None:
        def got(_channel: object, method: spec.Basic.GetOk, properties: Any, body: bytes) -> None:
            self._got.append((method, properties, body))

        self._copier.channel.basic_get(self._source, got)
        self._copier.wait(lambda: self._got)
        return self._got.pop()


def for_good(queue: str) -> Rewrite:
    """Return the change of properties when messages leave this queue permanently."""
    return lambda raw: _leaving(raw, queue, keep={})


def aside(queue: str) -> Rewrite:
    """Return the change of properties while messages are away: none may expire, so a header keeps the expiration."""

    def change(raw: bytes) -> bytes:
        try:
            expiration = decode_properties(raw).expiration
        except UndecodableHeaders:
            return raw
        return _leaving(raw, queue, keep={} if expiration is None else {EXPIRATION: expiration})

    return change


def due(queue: str) -> Rewrite:
    """Return the change of properties of a queue's retry that is sent on before it is due: it waits no longer."""

    def change(raw: bytes) -> bytes:
        properties = decode_properties(_leaving(raw, queue, keep={}))
        headers = properties.headers.replacing(drop={STAMP_HEADERS["wait"]}, put={})
        return encode_properties(replace(properties, expiration=None, headers=headers))

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
