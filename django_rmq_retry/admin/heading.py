"""Headers and properties as rows of a table, each value with its type; without what the reader may not see."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime

from django.utils.translation import gettext as _

from django_rmq_retry.conf import settings
from django_rmq_retry.core.deaths import BROKERS_OWN, Death, deaths
from django_rmq_retry.core.errors import UndecodableHeaders
from django_rmq_retry.core.masking import HIDDEN, hides, without
from django_rmq_retry.core.properties import Properties, decode_properties
from django_rmq_retry.core.stamps import PREFIX
from django_rmq_retry.templatetags.rmq_retry import visible

LONGEST = 2000
PLACE = "headers."
"""Before the name of a header that is hidden, so that no field of the body is called the same."""
ROUTING = ("CC", "BCC", "x-delay")
PLAIN = (
    *("content_type", "content_encoding", "delivery_mode", "priority", "correlation_id", "reply_to", "expiration"),
    *("message_id", "timestamp", "type", "user_id", "app_id", "cluster_id"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """One header."""

    name: str
    value: str
    kind: str
    section: str
    place: str = ""
    """Where its value is hidden; empty where it is seen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Heading:
    """Everything that a message says about itself."""

    headers: tuple[Header, ...] = ()
    properties: tuple[tuple[str, str], ...] = ()
    deaths: tuple[Death, ...] = ()
    raw: str = ""
    why: str = ""
    """Why it is shown as bytes, or not at all."""

    def sections(self) -> Iterator[tuple[str, str, list[Header]]]:
        names = {"yours": _("The sender's"), "routing": _("Routing"), "system": _("The broker's and this app's")}
        for section, title in names.items():
            rows = [header for header in self.headers if header.section == section]
            if rows:
                yield section, title, rows


def heading(raw: bytes, *, whole: bool, shown: Collection[str] = ()) -> Heading:
    """What stored properties say, to somebody who may see the whole, or else all but the hidden fields."""
    try:
        properties = decode_properties(raw)
    except UndecodableHeaders as error:
        said = _("They cannot be decoded: %(why)s") % {"why": error}
        if not whole:
            return Heading(why=said)
        return Heading(raw=raw[:LONGEST].hex(" "), why=said)
    plain = tuple((name, visible(str(getattr(properties, name)))) for name in PLAIN if _given(properties, name))
    headers = tuple(_headers(properties, whole, shown))
    return Heading(headers=headers, properties=plain, deaths=deaths(properties.headers))


def _given(properties: Properties, name: str) -> bool:
    return getattr(properties, name) is not None


def _headers(properties: Properties, whole: bool, shown: Collection[str]) -> Iterator[Header]:  # noqa: FBT001 - inside
    masks = () if whole else settings().mask
    for name in properties.headers:
        place = PLACE + name
        try:
            value = properties.headers[name]
        except UndecodableHeaders as error:
            said = _("cannot be decoded: %(why)s") % {"why": error.problem}
            yield Header(name=visible(name), value=said, kind="?", section=_section(name))
            continue
        hidden = place not in shown and hides([name], masks)
        seen = HIDDEN if hidden else _text(value if place in shown else without(value, [name], masks))
        kind = type(value).__name__
        yield Header(name=visible(name), value=seen, kind=kind, section=_section(name), place=place if hidden else "")


def _section(name: str) -> str:
    if name in ROUTING:
        return "routing"
    return "system" if name in BROKERS_OWN or name.startswith(("x-", PREFIX)) else "yours"


def _text(value: object) -> str:
    if isinstance(value, bytes):
        said = value.hex(" ")
    elif isinstance(value, datetime):
        said = value.isoformat()
    elif isinstance(value, Mapping):
        said = ", ".join(f"{name} = {_text(inner)}" for name, inner in value.items())
    elif isinstance(value, list):
        said = "; ".join(map(_text, value))
    else:
        said = str(value)
    said = visible(said)
    return said if len(said) <= LONGEST else f"{said[:LONGEST]}…"
