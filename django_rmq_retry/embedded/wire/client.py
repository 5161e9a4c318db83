"""The state that all client connections share, and one client with its channels, without a socket."""

import logging
import struct
import time
from collections.abc import Callable
from pathlib import Path
from secrets import token_urlsafe
from typing import Any

from pika import spec
from pika.amqp_object import Method
from pika.exceptions import InvalidFrameError

from django_rmq_retry.amqp.frames import (
    ACK_SIZE,
    BASIC_ACK,
    BASIC_PUBLISH,
    CLASS_BASIC,
    CONTENT_HEADER,
    FRAME_BODY,
    FRAME_HEADER,
    FRAME_MAX,
    FRAME_METHOD,
    Places,
)
from django_rmq_retry.embedded.engine.behaviour import V4_0, Behaviour
from django_rmq_retry.embedded.engine.channel import BrokerChannel
from django_rmq_retry.embedded.engine.clock import Clock
from django_rmq_retry.embedded.engine.consumers import MOST_UNREAD_BYTES
from django_rmq_retry.embedded.engine.refusals import RequestRefused
from django_rmq_retry.embedded.engine.session import ClientSession, restore
from django_rmq_retry.embedded.engine.vhost import EventOutbox, Vhost
from django_rmq_retry.embedded.file_store import FileStore
from django_rmq_retry.embedded.wire.frames import (
    HEARTBEAT,
    PROTOCOL,
    Frames,
    read_method,
    write_event,
    write_got,
    write_method,
)
from django_rmq_retry.embedded.wire.methods import Handshake, call

log = logging.getLogger("django_rmq_retry")

_MANDATORY, _IMMEDIATE = 1, 2
_EXPECTED = {
    FRAME_METHOD: "expected method frame, got non method frame instead",
    FRAME_HEADER: f"expected content header for class {CLASS_BASIC}, got non content header frame instead",
    FRAME_BODY: "expected content body, got non content body frame instead",
}

_ack = struct.Struct(">QB").unpack_from

FRAME_HEARTBEAT = 8
CLOSE_OK = bytes((1, 0, 0, 0, 0, 0, 4, 0, 10, 0, 51, 0xCE))
HANDSHAKE_SECONDS = 10.0
"""Seconds for the whole handshake, and for the answer to a close, however much the client sends meanwhile."""


class Broker:
    def __init__(self, behaviour: Behaviour = V4_0, *, file: Path | None = None) -> None:
        now = time.monotonic()
        self.behaviour = behaviour
        self.clock = Clock(now, epoch=time.time() - now)
        self._store = FileStore(file, epoch=self.clock.epoch) if file is not None else None
        self.vhost = Vhost("/", self.clock, behaviour, random_name=lambda: token_urlsafe(16), store=self._store)
        self._writers: dict[EventOutbox, Callable[[], None]] = {}
        if self._store is not None:
            restore(self.vhost, self._store.read())

    def connect(self, user: str, write_events: Callable[[], None]) -> ClientSession:
        """Open a session; `write_events` is called when it has events."""
        session = ClientSession(self.vhost, user=user)
        session.valve.most = MOST_UNREAD_BYTES
        self._writers[session] = write_events
        return session

    def disconnect(self, session: ClientSession) -> None:
        del self._writers[session]
        session.close()

    @property
    def has_events(self) -> bool:
        return bool(self.vhost.busy)

    def write_events(self) -> None:
        for session in list(self.vhost.busy):
            self._writers[session]()

    def commit(self) -> None:
        """Write every change to the file; no client may see a confirm before that."""
        if self._store is not None:
            self._store.commit()

    def close(self) -> None:
        if self._store is not None:
            try:
                self._store.commit()
            finally:
                self._store.close()


class Dialogue:
    """A channel and the message being received: basic.publish, then its header, then its body."""

    __slots__ = ("_bits", "_left", "_parts", "_place", "_places", "_raw", "_wanted", "closing", "engine")

    def __init__(self, engine: BrokerChannel, places: Places) -> None:
        self.engine = engine
        self.closing = False
        """We have closed the channel and wait for the client's close-ok."""
        self._places = places
        self._wanted = FRAME_METHOD
        self._place = "", ""
        self._bits = 0
        self._raw = b""
        self._left = 0
        self._parts: list[bytes] = []

    def take(self, kind: int, payload: bytes) -> bool:
        """Take a frame; return False if it is a method for the caller to handle."""
        if kind != self._wanted:
            raise RequestRefused(505, _EXPECTED[self._wanted])
        if kind == FRAME_METHOD:
            return self._take_method(payload)
        if kind == FRAME_HEADER:
            self._take_header(payload)
        else:
            self._take_body(payload)
        return True

    def _take_method(self, payload: bytes) -> bool:
        index = int.from_bytes(payload[:4])
        if index == BASIC_ACK and len(payload) == ACK_SIZE:
            tag, multiple = _ack(payload, 4)
            try:
                self.engine.ack(tag, multiple=bool(multiple & 1))
            except RequestRefused as refused:
                raise refused.answering(BASIC_ACK) from None
            return True
        if index != BASIC_PUBLISH:
            return False
        try:
            self._place = self._places[payload[6:-1]]
        except (IndexError, InvalidFrameError) as error:
            raise RequestRefused(502, "cannot decode the arguments of Basic.Publish") from error
        self._bits = payload[-1]
        self._wanted = FRAME_HEADER
        return True

    def _take_header(self, payload: bytes) -> None:
        if len(payload) < CONTENT_HEADER.size:
            raise RequestRefused(502, "a content header is too short")
        class_id, _, self._left = CONTENT_HEADER.unpack_from(payload)
        if class_id != CLASS_BASIC:
            raise RequestRefused(
                505, f"expected content header for class {CLASS_BASIC}, got one for class {class_id} instead"
            )
        self._raw = payload[CONTENT_HEADER.size :]
        if self._left:
            self._wanted = FRAME_BODY
        else:
            self._publish(b"")

    def _take_body(self, payload: bytes) -> None:
        self._left -= len(payload)
        if self._left < 0:
            raise RequestRefused(501, "a content body is larger than its header said")
        if self._left:
            self._parts.append(payload)
        elif self._parts:
            parts, self._parts = self._parts, []
            self._publish(b"".join((*parts, payload)))
        else:
            self._publish(payload)

    def _publish(self, body: bytes) -> None:
        self._wanted = FRAME_METHOD
        exchange, key = self._place
        mandatory, immediate = bool(self._bits & _MANDATORY), bool(self._bits & _IMMEDIATE)
        try:
            self.engine.publish(exchange, key, self._raw, body, mandatory=mandatory, immediate=immediate)
        except RequestRefused as refused:
            raise refused.answering(BASIC_PUBLISH) from None


class Client:
    """One client. Its methods are answered at once; `write_events` fetches what the engine has for it."""

    def __init__(self, broker: Broker) -> None:
        self.out = bytearray()
        self.ended = False
        """The socket is to be closed once `out` is written."""
        self.heartbeat = 0.0
        self.received_at = self.sent_at = time.monotonic()
        self._deadline = self.received_at + HANDSHAKE_SECONDS
        """The time at which a connection that is not open is cut."""
        self._broker = broker
        self._frames = Frames(FRAME_MAX)
        self._places = Places()
        self._dialogues: dict[int, Dialogue] = {}
        self._session: ClientSession | None = None
        self._handshake = Handshake()
        self._head: bytes | None = b""
        self._closing = False
        self._unreadable = False
        """The frames are unreadable from here on: only the answer to our close counts."""

    def receive(self, data: bytes) -> None:
        if self._unreadable:
            self.ended = data.endswith(CLOSE_OK)
            return
        if self._head is not None:
            data = self._begin(self._head + data)
        number = 0
        try:
            for kind, number, payload in self._frames.cut(data):
                try:
                    self._take(kind, number, payload)
                except RequestRefused as refused:
                    self._refuse(number, refused)
                if self.ended:
                    return
        except RequestRefused as refused:
            self._unreadable = True
            self._refuse(0, refused)
        except Exception as error:
            log.exception("The embedded broker failed on data from a client")
            self._refuse(number, RequestRefused(541, f"{type(error).__name__}: {error}"))

    def write_events(self) -> None:
        session = self._session
        if session is None:
            return
        out, most = self.out, self._frames.most
        for event in session.drain():
            if event.channel in session.channels:
                write_event(out, event, frame_max=most)

    def measure(self) -> None:
        if self._session is not None:
            self._session.left_unread(len(self.out))

    def close(self, refused: RequestRefused) -> None:
        if self._closing or self.ended:
            return
        self.write_events()
        self.end_session()
        self._closing = True
        self._deadline = time.monotonic() + HANDSHAKE_SECONDS
        self._write(0, spec.Connection.Close(refused.code, refused.text, refused.class_id, refused.method_id))

    def end_session(self) -> None:
        """End the session; its unacked messages return to their queues."""
        session, self._session = self._session, None
        self._dialogues.clear()
        if session is not None:
            self._broker.disconnect(session)

    def beat(self, now: float) -> str:
        """Send a heartbeat if one is due; return the reason to cut the connection, if there is one."""
        if self._session is None:
            return "the client did not answer in time" if now > self._deadline else ""
        if not self.heartbeat:
            return ""
        if now - self.received_at > 2 * self.heartbeat:
            return "missed heartbeats"
        if now - self.sent_at >= self.heartbeat / 2:
            self.out += HEARTBEAT
        return ""

    def _begin(self, head: bytes) -> bytes:
        """Read the protocol header and return the bytes after it."""
        if not PROTOCOL.startswith(head[: len(PROTOCOL)]):
            self.out += PROTOCOL
            self.ended = True
            return b""
        if len(head) < len(PROTOCOL):
            self._head = head
            return b""
        self._head = None
        self._write(0, self._handshake.begin(self._broker.behaviour))
        return head[len(PROTOCOL) :]

    def _take(self, kind: int, number: int, payload: bytes) -> None:
        if kind == FRAME_HEARTBEAT:
            return
        if number == 0:
            self._take_control(kind, payload)
            return
        if self._closing:
            return
        if self._session is None:
            raise RequestRefused(504, "the connection is not open")
        dialogue = self._dialogues.get(number)
        if dialogue is None:
            self._open_channel(self._session, number, kind, payload)
        elif dialogue.closing:
            self._take_closing(number, kind, payload)
        elif not dialogue.take(kind, payload):
            self._take_method(number, dialogue, payload)

    def _take_method(self, number: int, dialogue: Dialogue, payload: bytes) -> None:
        # Earlier events precede the answer, and the events of this call follow it.
        self.write_events()
        asked: Any = read_method(payload)
        try:
            self._answer(number, dialogue, asked)
        except RequestRefused as refused:
            raise refused.answering(asked.INDEX) from None

    def _answer(self, number: int, dialogue: Dialogue, asked: Any) -> None:
        match asked:
            case spec.Basic.Get():
                got = dialogue.engine.get(asked.queue, no_ack=asked.no_ack)
                if got is None:
                    self._write(number, spec.Basic.GetEmpty())
                else:
                    write_got(self.out, number, got, frame_max=self._frames.most)
            case spec.Channel.Close():
                del self._dialogues[number]
                if self._session is not None:
                    self._session.close_channel(number)
                self._write(number, spec.Channel.CloseOk())
            case spec.Channel.Open():
                raise RequestRefused(504, "second 'channel.open' seen")
            case spec.Channel.CloseOk() | spec.Channel.FlowOk() | spec.Basic.CancelOk():
                pass
            case _:
                answer = call(dialogue.engine, asked)
                if answer is not None:
                    self._write(number, answer)

    def _open_channel(self, session: ClientSession, number: int, kind: int, payload: bytes) -> None:
        if kind != FRAME_METHOD or type(read_method(payload)) is not spec.Channel.Open:
            raise RequestRefused(504, "expected 'channel.open'")
        if len(self._dialogues) >= self._handshake.channel_max:
            opened = f"number of channels opened ({len(self._dialogues)})"
            raise RequestRefused(
                530, f"{opened} has reached the negotiated channel_max ({self._handshake.channel_max})"
            )
        self._dialogues[number] = Dialogue(session.channel(number), self._places)
        self._write(number, spec.Channel.OpenOk())

    def _take_closing(self, number: int, kind: int, payload: bytes) -> None:
        """After our channel.close accept only its answer, or a close that crossed it."""
        if kind != FRAME_METHOD:
            return
        asked = read_method(payload)
        if type(asked) is spec.Channel.Close:
            self._write(number, spec.Channel.CloseOk())
        elif type(asked) is spec.Channel.CloseOk:
            del self._dialogues[number]

    def _refuse(self, number: int, refused: RequestRefused) -> None:
        dialogue = self._dialogues.get(number)
        if refused.hard or dialogue is None or self._session is None:
            # Before login, a reason is sent only to a client that supports it.
            if self._handshake.sends_reason:
                self.close(refused)
            else:
                self.ended = True
            return
        self.write_events()
        dialogue.closing = True
        self._session.close_channel(number)
        self._write(number, spec.Channel.Close(refused.code, refused.text, refused.class_id, refused.method_id))

    def _take_control(self, kind: int, payload: bytes) -> None:
        if kind != FRAME_METHOD:
            raise RequestRefused(505, "expected method frame, got non method frame instead")
        asked: Any = read_method(payload)
        if type(asked) is spec.Connection.CloseOk and self._closing:
            self.ended = True
        elif type(asked) is spec.Connection.Close:
            self.write_events()
            self.end_session()
            self._write(0, spec.Connection.CloseOk())
            self.ended = True
        elif self._closing:
            return
        elif type(asked) is self._handshake.expected:
            self._take_handshake(asked)
        elif self._session is not None and type(asked) is spec.Connection.UpdateSecret:
            self._write(0, spec.Connection.UpdateSecretOk())
        else:
            state = "running" if self._session is not None else "starting"
            raise RequestRefused(504, f"unexpected method in connection state {state}")

    def _take_handshake(self, asked: Any) -> None:
        handshake = self._handshake
        answer = handshake.take(asked)
        if answer is not None:
            self._write(0, answer)
        if handshake.vhost is not None:
            if handshake.vhost != self._broker.vhost.name:
                raise RequestRefused(530, f"vhost {handshake.vhost} not found")
            self._session = self._broker.connect(handshake.user, self.write_events)
            self._session.supports_cancel = handshake.supports_cancel
            self.heartbeat = handshake.heartbeat
            self._frames.most = handshake.frame_max
            self._write(0, spec.Connection.OpenOk())

    def _write(self, channel: int, method: Method) -> None:
        write_method(self.out, channel, method)
