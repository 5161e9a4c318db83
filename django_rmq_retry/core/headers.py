"""The headers of a message, kept as the bytes they came in so that what we do not understand is never changed."""

from collections.abc import Collection, Iterator, Mapping
from functools import lru_cache

from django_rmq_retry.core.encoding import encode_entry
from django_rmq_retry.core.errors import UndecodableHeaders
from django_rmq_retry.core.fields import FALLIBLE, check_value, decode_key, decode_value, entries, shown


class Headers(Mapping[str, object]):
    """An AMQP field table: entries are cut apart at once, a value is decoded when it is asked for.

    A key that comes twice stays twice in `raw`; looking it up gives the last, as a dict of pika's would. A key that is
    not UTF-8 is listed with surrogate escapes, so that it can be dropped or kept like any other.
    """

    __slots__ = ("_doubtful", "_known", "raw")

    raw: bytes

    def __init__(self, raw: bytes = b"") -> None:
        self.raw = raw
        self._known: dict[str, tuple[int, int]] | None
        self._known, self._doubtful = _cut(raw)

    @classmethod
    def _sound(cls, raw: bytes) -> "Headers":
        """Headers of our own making: most are sent and never looked into."""
        made = cls.__new__(cls)
        made.raw = raw
        made._known = None  # noqa: SLF001 - it is one of us
        return made

    @property
    def _spans(self) -> dict[str, tuple[int, int]]:
        if self._known is None:
            self._known, self._doubtful = _cut(self.raw)
        return self._known

    @classmethod
    def of(cls, values: Mapping[str, object]) -> "Headers":
        """Encode values; integers take the smallest of 32 and 64 bits that fits."""
        return cls._sound(b"".join([encode_entry(*entry) for entry in values.items()])) if values else EMPTY

    def __getitem__(self, key: str) -> object:
        at, stop = self._spans[key]
        try:
            return decode_value(self.raw, at, stop)
        except UndecodableHeaders as error:
            name = shown(key.encode("utf-8", "surrogateescape"))
            raise UndecodableHeaders(error.problem, header=name) from None

    def get(self, key: str, default: object = None) -> object:
        # Mapping's own would raise and catch for each header that is missing, and most are.
        return self[key] if key in self._spans else default

    def __contains__(self, key: object) -> bool:
        return key in self._spans

    def __iter__(self) -> Iterator[str]:
        return iter(self._spans)

    def __len__(self) -> int:
        return len(self._spans)

    def __eq__(self, other: object) -> bool:
        return self.raw == other.raw if isinstance(other, Headers) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.raw)

    def __repr__(self) -> str:
        return f"<Headers: {len(self)} entries, {len(self.raw)} bytes>"

    def replacing(self, *, drop: Collection[str] = (), put: Mapping[str, object] | None = None) -> "Headers":
        """Return headers without `drop` and with `put` at the end; every other entry keeps its bytes and its place."""
        raw = self.raw
        pieces = []
        if raw:
            gone = _encoded(frozenset(drop)) | _encoded(frozenset(put or ()))
            pieces = [raw[start:stop] for key, start, _, stop in entries(raw, 0, len(raw)) if key not in gone]
        pieces += [encode_entry(key, value) for key, value in (put or {}).items()]
        made = b"".join(pieces)
        return self if made == raw else self._sound(made)

    def check(self) -> None:
        """Raise UndecodableHeaders naming the first header that cannot be decoded, if there is one."""
        if self._known is None:
            self._known, self._doubtful = _cut(self.raw)
        for key, value_at, stop in self._doubtful:
            decode_key(key)
            try:
                check_value(self.raw, value_at, stop)
            except UndecodableHeaders as error:
                raise UndecodableHeaders(error.problem, header=shown(key)) from None


def _cut(raw: bytes) -> tuple[dict[str, tuple[int, int]], list[tuple[bytes, int, int]]]:
    """Where each value stands; and, of those that may not be decodable, key and place once more."""
    spans: dict[str, tuple[int, int]] = {}
    doubtful: list[tuple[bytes, int, int]] = []
    for key, _, value_at, stop in entries(raw, 0, len(raw)):
        spans[key.decode("utf-8", "surrogateescape")] = value_at, stop
        if raw[value_at] in FALLIBLE or not key.isascii():
            doubtful.append((key, value_at, stop))
    return spans, doubtful


@lru_cache(maxsize=64)
def _encoded(keys: frozenset[str]) -> frozenset[bytes]:
    return frozenset(key.encode("utf-8", "surrogateescape") for key in keys)


EMPTY = Headers()
