"""Moves messages from queue to queue: each is copied, confirmed, only then acked. Killed anywhere, it loses none."""

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from pika import spec

from django_rmq_retry.broker.asking import Session
from django_rmq_retry.broker.envelope import RawProperties, marshal_publish
from django_rmq_retry.broker.sizing import above
from django_rmq_retry.core.deaths import BROKERS_OWN, rejections
from django_rmq_retry.core.errors import RmqRetryError, UndecodableHeaders
from django_rmq_retry.core.properties import decode_properties, encode_properties
from django_rmq_retry.core.stamps import PREFIX, Stamp

WINDOW = 200
"""How many copies may be unconfirmed at once."""
EXPIRATION = PREFIX + "expiration"
_MILLISECONDS = re.compile(r"[0-9]{1,12}")
Change = Callable[[bytes], bytes]
Got = tuple[spec.Basic.GetOk, RawProperties, bytes]


class MoveStopped(RmqRetryError):
    """The broker did not take a copy; what was moved is moved, the rest is where it was."""

    def __init__(self, source: str, target: str, reason: str) -> None:
        self.source = source
        self.target = target
        super().__init__(f"Moving {source!r} to {target!r} stopped: {reason} No message was lost; run it again.")


class Move:
    """One pass over a queue, until it is empty: ``Move(session, "a", "b", change=for_good("a")).run()``."""

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
        """Move all there is; how many that were."""
        try:
            self._begin()
            while (got := self._next()) is not None:
                self._copy(*got)
                self._wait(lambda: len(self._pending) < WINDOW)
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
        """Asked before: a copy too large would close the channel, and double what is confirmed but not acked."""
        sizes = self._session.connection.sizes
        if size > sizes.taken and sizes.limit is None:
            answered: list[bool] = []
            sizes.ask(size, lambda: answered.append(True))
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
            # A copy that was confirmed besides is doubled, for its original goes back: that is what may happen.
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
        """What is unacked goes back to its queue with the channel; what was acked is acked before it closes."""
        if self._channel.is_open:
            self._channel.close()
            self._session.wait(lambda: self._channel.is_closed)


def for_good(queue: str) -> Change:
    """How properties change when messages leave this queue for another one."""
    return lambda raw: _leaving(raw, queue, keep={})


def aside(queue: str) -> Change:
    """The same where they shall come back: nothing may expire meanwhile, so the expiration travels as a header."""

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
        # A copy begins a new x-death: what it counted is kept in a header of our own, which the carriers know.
        counted = rejections(properties.headers, queue)
        if counted:
            put[PREFIX + "attempts"] = Stamp.read(properties.headers).attempts + counted
        headers = properties.headers.replacing(drop=BROKERS_OWN | {EXPIRATION} | put.keys(), put=put)
    except UndecodableHeaders:
        return raw
    expiration = None if keep else properties.expiration
    return encode_properties(replace(properties, expiration=expiration, user_id=None, headers=headers))


def back(raw: bytes) -> bytes:
    """How they change on the way back: a message's own expiration begins anew."""
    if EXPIRATION.encode() not in raw:
        return raw
    try:
        properties = decode_properties(raw)
        expiration = properties.headers.get(EXPIRATION)
        headers = properties.headers.replacing(drop={EXPIRATION}, put={})
    except UndecodableHeaders:
        return raw
    # What a sender wrote there the broker might refuse, and then nothing could be moved any more.
    known = expiration if isinstance(expiration, str) and _MILLISECONDS.fullmatch(expiration) else properties.expiration
    return encode_properties(replace(properties, expiration=known, headers=headers))
