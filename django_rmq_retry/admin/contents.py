"""A message's body and headers as a page shows them, with its confidential fields hidden."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from datetime import datetime

from django.utils.translation import gettext as _

from django_rmq_retry.conf import settings
from django_rmq_retry.database_clock import stated_time
from django_rmq_retry.errors import UndecodableHeaders
from django_rmq_retry.markup import visible
from django_rmq_retry.messages.deaths import MOST_DEATHS_SHOWN, Death, deaths, well_formed
from django_rmq_retry.messages.header_names import BROKERS_OWN, PREFIX
from django_rmq_retry.messages.masking import HIDDEN, body_text, hides, indented, is_json, masked, without
from django_rmq_retry.messages.properties import Properties, decode_properties
from django_rmq_retry.parked.edit import as_text
from django_rmq_retry.parked.links import trace_link

TEXT_LIMIT = 64 * 1024
HEX_LIMIT = 4 * 1024
FORMATTED_LIMIT = 8 * TEXT_LIMIT
"""Indenting makes a text longer: one that would grow beyond this size is shown as it is stored."""
MOST_HIDDEN = 100
"""The most hidden fields that are named with a button each; further ones stay hidden and have no button."""
MASK_LIMIT = 1024 * 1024
"""Hiding fields reads the whole text: a longer one is withheld from users who may not see all of it."""
HEX_WIDTH = 16
"""The bytes in one line of a hex dump."""
VALUE_LIMIT = 2000
"""The characters of a header's value that are shown."""
DEATH_NAME_LIMIT = 200
"""The characters of a name in x-death that are shown."""
HEADER_PLACE = "headers."
"""The prefix of a hidden header's name, so that it differs from the path of a body's field."""
ROUTING = ("CC", "BCC", "x-delay")
CREATION = "traceparent"
"""The header with the W3C trace context of the message's publish."""
PROPERTIES = (
    *("content_type", "content_encoding", "delivery_mode", "priority", "correlation_id", "reply_to", "expiration"),
    *("message_id", "timestamp", "type", "user_id", "app_id", "cluster_id"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Body:
    formatted: str = ""
    exact: str = ""
    hex: str = ""
    hidden: tuple[str, ...] = ()
    """Paths of fields whose values are not shown."""
    unnamed: int = 0
    """The number of hidden fields beyond the named ones."""
    cut: bool = False
    why: str = ""
    """The reason that nothing is shown, or that it is not shown as text."""
    unformatted: str = ""
    """The reason that a JSON text is not indented."""


def body_of(data: bytes, content_type: str, *, whole: bool, shown: Collection[str] = ()) -> Body:
    """Return the body for a user who may see the whole, or else without the hidden fields."""
    if whole:
        return _open(data, content_type)
    if len(data) > MASK_LIMIT:
        return Body(why=_("The body is too large to hide its confidential fields, so it is not shown."))
    text, hidden = masked(data, content_type, settings().operators.mask, shown=shown)
    if text is None:
        return Body(why=_why_withheld(data, content_type))
    places = [place for place in hidden if place not in shown]
    return replace(_shown(text), hidden=tuple(places[:MOST_HIDDEN]), unnamed=len(places[MOST_HIDDEN:]))


def dump(data: bytes) -> str:
    lines = []
    for start in range(0, min(len(data), HEX_LIMIT), HEX_WIDTH):
        part = data[start : start + HEX_WIDTH]
        letters = "".join(chr(byte) if 0x20 <= byte < 0x7F else "." for byte in part)  # noqa: PLR2004 - ASCII
        lines.append(f"{start:08x}  {part.hex(' '):<{3 * HEX_WIDTH}} {letters}")
    return "\n".join(lines)


def _open(data: bytes, content_type: str) -> Body:
    text = body_text(data, content_type)
    if text is None:
        why = _("The body is not text in its declared encoding, so its bytes are shown.")
        return Body(hex=dump(data), cut=len(data) > HEX_LIMIT, why=why)
    return replace(_shown(text), hex=dump(data))


def _why_withheld(data: bytes, content_type: str) -> str:
    """Return the reason that the confidential fields of a body cannot be found."""
    if is_json(body_text(data, content_type) or ""):
        return _("The body is nested too deeply to find its confidential fields, so it is not shown.")
    return _("The body is not JSON, so its confidential fields cannot be found and it is not shown.")


def _shown(text: str) -> Body:
    exact, formatted, why = visible(text[:TEXT_LIMIT]), None, ""
    cut = len(text) > TEXT_LIMIT
    if not cut and is_json(text):
        formatted = indented(text, most=FORMATTED_LIMIT)
        if formatted is None:
            why = _("The body is nested too deeply to be formatted.")
    return Body(formatted=visible(formatted or ""), exact=exact, cut=cut, unformatted=why)


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    name: str
    value: str
    kind: str
    section: str
    place: str = ""
    """The header's name for a reveal if its value is hidden, else empty."""
    spans: str = ""
    """The address of the spans of the message's publish, if this header names them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeathEntry:
    """One entry of x-death: how many times the broker moved the message out of a queue, and the reason."""

    queue: str
    exchange: str
    reason: str
    count: int
    at: datetime | None
    keys: str
    expiration: str

    @classmethod
    def of(cls, death: Death) -> "DeathEntry":
        texts = {name: _short(getattr(death, name)) for name in ("queue", "exchange", "reason", "expiration")}
        keys = _short(", ".join(death.keys[:MOST_DEATHS_SHOWN]))
        return cls(**texts, count=death.count, at=stated_time(death.at), keys=keys)


@dataclass(frozen=True, slots=True, kw_only=True)
class Heading:
    headers: tuple[Header, ...] = ()
    properties: tuple[tuple[str, str], ...] = ()
    deaths: tuple[DeathEntry, ...] = ()
    """The first entries of x-death."""
    more_deaths: int = 0
    unread_deaths: bool = False
    """True if x-death has a shape that no broker writes."""
    raw: str = ""
    why: str = ""
    """The reason that the headers are shown as bytes, or not at all."""

    def sections(self) -> Iterator[tuple[str, str, list[Header]]]:
        names = {"yours": _("Set by the sender"), "routing": _("Routing"), "system": _("Set by the broker or this app")}
        for section, title in names.items():
            rows = [header for header in self.headers if header.section == section and not self._is_told(header)]
            if rows:
                yield section, title, rows

    def _is_told(self, header: Header) -> bool:
        """True for x-death, if the table of its entries has all of it."""
        whole = self.deaths and not (self.more_deaths or self.unread_deaths)
        return bool(whole) and header.name == "x-death" and not header.place


def heading_of(raw: bytes, *, whole: bool, shown: Collection[str] = ()) -> Heading:
    """Return stored properties for a user who may see the whole, or else without the hidden fields."""
    try:
        properties = decode_properties(raw)
    except UndecodableHeaders as error:
        text = _("They cannot be decoded: %(why)s") % {"why": error}
        return Heading(raw=raw[:VALUE_LIMIT].hex(" ") if whole else "", why=text)
    values = [(name, getattr(properties, name)) for name in PROPERTIES]
    entries = deaths(properties.headers)
    return Heading(
        headers=tuple(_headers(properties, whole=whole, shown=shown)),
        properties=tuple((name, visible(str(value))) for name, value in values if value is not None),
        deaths=tuple(map(DeathEntry.of, entries[:MOST_DEATHS_SHOWN])),
        more_deaths=max(len(entries) - MOST_DEATHS_SHOWN, 0),
        unread_deaths=not well_formed(properties.headers),
    )


def _headers(properties: Properties, *, whole: bool, shown: Collection[str]) -> Iterator[Header]:
    masks = () if whole else settings().operators.mask
    for name in properties.headers:
        place = HEADER_PLACE + name
        try:
            value = properties.headers[name]
        except UndecodableHeaders as error:
            text = _("cannot be decoded: %(why)s") % {"why": error.problem}
            yield Header(name=visible(name), value=text, kind="?", section=_section(name))
            continue
        hidden = place not in shown and hides([name], masks)
        seen = HIDDEN
        if not hidden:
            text = visible(as_text(value if place in shown else without(value, [name], masks)))
            seen = text if len(text) <= VALUE_LIMIT else f"{text[:VALUE_LIMIT]}…"
        yield Header(
            name=visible(name),
            value=seen,
            kind=type(value).__name__,
            section=_section(name),
            place=place if hidden else "",
            spans=trace_link(value) if name == CREATION and not hidden else "",
        )


def _section(name: str) -> str:
    if name in ROUTING:
        return "routing"
    return "system" if name in BROKERS_OWN or name.startswith(("x-", PREFIX)) else "yours"


def _short(text: str) -> str:
    return visible(text) if len(text) <= DEATH_NAME_LIMIT else f"{visible(text[:DEATH_NAME_LIMIT])}…"
