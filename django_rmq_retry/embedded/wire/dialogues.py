"""One channel as it is spoken: frames come in, whole methods and messages go to the engine."""

import struct

from pika.exceptions import InvalidFrameError

from django_rmq_retry.broker.delivering import Places
from django_rmq_retry.broker.envelope import CLASS_BASIC, FRAME_BODY, FRAME_HEADER, FRAME_METHOD
from django_rmq_retry.embedded.engine.channels import Channel
from django_rmq_retry.embedded.engine.refusals import Refused

PUBLISH, ACK, GET = ((CLASS_BASIC << 16) | number for number in (40, 80, 70))
_MANDATORY, _IMMEDIATE = 1, 2
_ACK_SIZE = 13
_HEADER_FIXED = 12
_EXPECTED = {
    FRAME_METHOD: "expected method frame, got non method frame instead",
    FRAME_HEADER: f"expected content header for class {CLASS_BASIC}, got non content header frame instead",
    FRAME_BODY: "expected content body, got non content body frame instead",
}

_ack = struct.Struct(">QB").unpack_from
_header = struct.Struct(">HHQ").unpack_from


class Dialogue:
    """A channel and the message that is on its way in: basic.publish, then its header, then its body."""

    __slots__ = ("_bits", "_left", "_parts", "_place", "_places", "_raw", "_wanted", "closing", "engine")

    def __init__(self, engine: Channel, places: Places) -> None:
        self.engine = engine
        self.closing = False
        """We have closed it and the client has not said yet that it knows."""
        self._places = places
        self._wanted = FRAME_METHOD
        self._place = "", ""
        self._bits = 0
        self._raw = b""
        self._left = 0
        self._parts: list[bytes] = []

    def take(self, kind: int, payload: bytes) -> bool:
        """Take a frame in; False: it is a method that is for somebody else."""
        if kind != self._wanted:
            raise Refused(505, _EXPECTED[self._wanted])
        if kind == FRAME_METHOD:
            return self._take_method(payload)
        if kind == FRAME_HEADER:
            self._take_header(payload)
        else:
            self._take_body(payload)
        return True

    def _take_method(self, payload: bytes) -> bool:
        index = int.from_bytes(payload[:4])
        if index == ACK and len(payload) == _ACK_SIZE:
            tag, multiple = _ack(payload, 4)
            self.engine.ack(tag, multiple=bool(multiple & 1))
            return True
        if index != PUBLISH:
            return False
        try:
            self._place = self._places[payload[6:-1]]
        except (IndexError, InvalidFrameError) as error:
            raise Refused(502, "cannot decode the arguments of Basic.Publish") from error
        self._bits = payload[-1]
        self._wanted = FRAME_HEADER
        return True

    def _take_header(self, payload: bytes) -> None:
        if len(payload) < _HEADER_FIXED:
            raise Refused(502, "a content header is too short")
        class_id, _, self._left = _header(payload)
        if class_id != CLASS_BASIC:
            raise Refused(505, f"expected content header for class {CLASS_BASIC}, got one for class {class_id} instead")
        self._raw = payload[_HEADER_FIXED:]
        if self._left:
            self._wanted = FRAME_BODY
        else:
            self._publish(b"")

    def _take_body(self, payload: bytes) -> None:
        self._left -= len(payload)
        if self._left < 0:
            raise Refused(501, "a content body is larger than its header said")
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
        bits = self._bits
        self.engine.publish(
            exchange, key, self._raw, body, mandatory=bool(bits & _MANDATORY), immediate=bool(bits & _IMMEDIATE)
        )
