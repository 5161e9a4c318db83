"""The page of one parked message: heading, body and headers."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any
from urllib.parse import urlencode

from django.db.models import Count, OuterRef, Q, Subquery
from django.http import Http404, HttpRequest, HttpResponse
from django.utils.html import format_html
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from django_rmq_retry.admin import labels, pages
from django_rmq_retry.admin.labels import plain_words
from django_rmq_retry.admin.pages import Button, Pages
from django_rmq_retry.admin.timeline import spans_at, timeline, with_reasons
from django_rmq_retry.conf import settings
from django_rmq_retry.errors import UndecodableHeaders
from django_rmq_retry.messages.deaths import Death, deaths, rejections, well_formed
from django_rmq_retry.messages.header_names import BROKERS_OWN, PREFIX
from django_rmq_retry.messages.masking import HIDDEN, decoded, hides, indented, is_json, masked, without
from django_rmq_retry.messages.properties import Properties, decode_properties
from django_rmq_retry.models import OperatorAction, ParkedMessage, RequeueItem, State
from django_rmq_retry.models.parked import reason_text
from django_rmq_retry.ordering.keys import blocked_by
from django_rmq_retry.parked.attempts import attempts_of
from django_rmq_retry.parked.edit import plain
from django_rmq_retry.parked.record import moment
from django_rmq_retry.parked.selection import number_in
from django_rmq_retry.templatetags.rmq_retry import rmq_minute, visible

TEXT_LIMIT = 64 * 1024
HEX_LIMIT = 4 * 1024
FORMATTED_LIMIT = 8 * TEXT_LIMIT
"""Indenting makes a text longer: one that would grow beyond this size is shown as it is stored."""
MOST_HIDDEN = 100
"""The most hidden fields that are named with a button each; further ones stay hidden and have no button."""
MASK_LIMIT = 1024 * 1024
"""Hiding fields reads the whole text: a longer one is withheld from users who may not see all of it."""
MOST_EDITED = 3 * 1024 * 1024
"""A form sends up to three bytes for each byte of a body, and more for the end of a line."""
_WIDTH = 16

LONGEST = 2000
DEATHS = 20
"""The most entries of x-death that are shown; a forged header may have thousands."""
SHORT = 200
PLACE = "headers."
"""The prefix of a hidden header's name, so that it differs from the path of a body's field."""
ROUTING = ("CC", "BCC", "x-delay")
CREATION = "traceparent"
"""The header with the W3C trace context of the message's publish."""
PLAIN = (
    *("content_type", "content_encoding", "delivery_mode", "priority", "correlation_id", "reply_to", "expiration"),
    *("message_id", "timestamp", "type", "user_id", "app_id", "cluster_id"),
)

ATTEMPTS = 20
ACTIONS = 20
MOST_TOLD = 2**31 - 1
"""A bound for the count in x-death, which can be forged; no column holds more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Body:
    """A body as a page shows it."""

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


def whole_of(request: HttpRequest, message: ParkedMessage) -> bool:
    """Return True if the user may see every byte."""
    return not pages.refusal(request, "view_payload", message)


def look(data: bytes, content_type: str, *, whole: bool, shown: Collection[str] = ()) -> Body:
    """Return the body for a user who may see the whole, or else without the hidden fields."""
    if whole:
        return _open(data, content_type)
    if len(data) > MASK_LIMIT:
        return Body(why=_("The body is too large to hide its confidential fields, so it is not shown."))
    text, hidden = masked(data, content_type, settings().operators.mask, shown=shown)
    if text is None:
        return Body(why=_untold(data, content_type))
    places = [place for place in hidden if place not in shown]
    return replace(_shown(text), hidden=tuple(places[:MOST_HIDDEN]), unnamed=len(places[MOST_HIDDEN:]))


def beyond_forms(number: int, size: int) -> str:
    """Return the reason that a body of this size cannot be edited on a page; empty if it can."""
    if size <= MOST_EDITED:
        return ""
    text = _("Its body is too large to be edited in a browser. Edit it with: %(command)s")
    return text % {"command": f"manage.py rmq_parked edit {number} --editor"}


def dump(data: bytes) -> str:
    """Return a hex dump, with ASCII characters beside it."""
    lines = []
    for start in range(0, min(len(data), HEX_LIMIT), _WIDTH):
        part = data[start : start + _WIDTH]
        letters = "".join(chr(byte) if 0x20 <= byte < 0x7F else "." for byte in part)  # noqa: PLR2004 - ASCII
        lines.append(f"{start:08x}  {part.hex(' '):<{3 * _WIDTH}} {letters}")
    return "\n".join(lines)


def _open(data: bytes, content_type: str) -> Body:
    text = decoded(data, content_type)
    if text is None:
        why = _("The body is not text in its declared encoding, so its bytes are shown.")
        return Body(hex=dump(data), cut=len(data) > HEX_LIMIT, why=why)
    return replace(_shown(text), hex=dump(data))


def _untold(data: bytes, content_type: str) -> str:
    """Return the reason that the confidential fields of a body cannot be found."""
    if is_json(decoded(data, content_type) or ""):
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
    """One header."""

    name: str
    value: str
    kind: str
    section: str
    place: str = ""
    """The header's name for a reveal if its value is hidden, else empty."""
    spans: str = ""
    """The address of the spans of the message's publish, if this header names them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Departure:
    """One entry of x-death: how many times the broker moved the message out of a queue, and the reason."""

    queue: str
    exchange: str
    reason: str
    count: int
    at: datetime | None
    keys: str
    expiration: str

    @classmethod
    def of(cls, death: Death) -> "Departure":
        return cls(
            queue=_short(death.queue),
            exchange=_short(death.exchange),
            reason=_short(death.reason),
            count=death.count,
            at=moment(death.at),
            keys=_short(", ".join(death.keys[:DEATHS])),
            expiration=_short(death.expiration),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Heading:
    """The headers and properties of a message."""

    headers: tuple[Header, ...] = ()
    properties: tuple[tuple[str, str], ...] = ()
    deaths: tuple[Departure, ...] = ()
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
            rows = [header for header in self.headers if header.section == section]
            if rows:
                yield section, title, rows


def heading(raw: bytes, *, whole: bool, shown: Collection[str] = ()) -> Heading:
    """Return stored properties for a user who may see the whole, or else without the hidden fields."""
    try:
        properties = decode_properties(raw)
    except UndecodableHeaders as error:
        text = _("They cannot be decoded: %(why)s") % {"why": error}
        if not whole:
            return Heading(why=text)
        return Heading(raw=raw[:LONGEST].hex(" "), why=text)
    plain = tuple((name, visible(str(getattr(properties, name)))) for name in PLAIN if _given(properties, name))
    headers = tuple(_headers(properties, whole, shown))
    entries = deaths(properties.headers)
    return Heading(
        headers=headers,
        properties=plain,
        deaths=tuple(map(Departure.of, entries[:DEATHS])),
        more_deaths=max(len(entries) - DEATHS, 0),
        unread_deaths=not well_formed(properties.headers),
    )


def _given(properties: Properties, name: str) -> bool:
    return getattr(properties, name) is not None


def _headers(properties: Properties, whole: bool, shown: Collection[str]) -> Iterator[Header]:  # noqa: FBT001 - private
    masks = () if whole else settings().operators.mask
    for name in properties.headers:
        place = PLACE + name
        try:
            value = properties.headers[name]
        except UndecodableHeaders as error:
            text = _("cannot be decoded: %(why)s") % {"why": error.problem}
            yield Header(name=visible(name), value=text, kind="?", section=_section(name))
            continue
        hidden = place not in shown and hides([name], masks)
        seen = HIDDEN if hidden else _text(value if place in shown else without(value, [name], masks))
        yield Header(
            name=visible(name),
            value=seen,
            kind=type(value).__name__,
            section=_section(name),
            place=place if hidden else "",
            spans=spans_at(value) if name == CREATION and not hidden else "",
        )


def _section(name: str) -> str:
    if name in ROUTING:
        return "routing"
    return "system" if name in BROKERS_OWN or name.startswith(("x-", PREFIX)) else "yours"


def _short(text: str) -> str:
    shown = visible(text[: SHORT + 1])
    return shown if len(text) <= SHORT else f"{shown[:SHORT]}…"


def _text(value: object) -> str:
    text = visible(plain(value))
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}…"


def view(model_admin: Pages, request: HttpRequest, object_id: str, *, shown: tuple[str, ...] = ()) -> HttpResponse:
    """Show the page; ``shown`` names the hidden fields that this one response reveals."""
    message = _found(object_id)
    why = pages.refusal(request, "view", message)
    if why:
        return model_admin.refused(request, why)
    history = _history(request, message)
    return model_admin.page(
        request,
        "parkedmessage/message.html",
        title=f"{message.type} {message}".strip(),
        message=message,
        plain=plain_words(message.group) if message.open else "",
        summary=_summary(message),
        **_become(message, history["items"]),
        unrecorded=_unrecorded(message),
        parked_by=labels.PARKED_BY.get(message.by, message.by),
        resolution=labels.resolution(message.resolution),
        buttons=buttons_of(model_admin, request, message),
        **history,
        **_contents(request, message, shown),
    )


def found_or_404(object_id: str) -> ParkedMessage:
    """Return the parked message with all its columns, or raise Http404."""
    number = number_in(object_id)
    rows = None if number is None else ParkedMessage.objects.select_related("group").filter(pk=number)
    message = None if rows is None else rows.first()
    if message is None:
        raise Http404(
            _(
                "There is no such message. Resolved messages are deleted when their retention ends; "
                "the audit log is kept."
            )
        )
    return message


def buttons_of(model_admin: Pages, request: HttpRequest, message: ParkedMessage) -> list[Button]:
    """Return the actions on the message in its state; one that is not allowed carries the reason."""
    selected = "?" + urlencode({"message": message.pk})
    preview = model_admin.address("requeuerun_preview") + selected
    closed = "" if message.open else _("The message is no longer open, so no action on it is possible.")

    def button(label: str, verb: str, address: str, **more: Any) -> Button:
        return Button(label=label, address=address, why=closed or pages.refusal(request, verb, message), **more)

    uneditable = closed or pages.refusal(request, "edit", message) or beyond_forms(message.pk, message.size)
    buttons = [
        button(_("Requeue…"), "requeue", preview, kind="main"),
        Button(
            label=_("Edit and requeue…"), address=model_admin.address("parkedmessage_edit", message.pk), why=uneditable
        ),
        button(_("Discard…"), "discard", model_admin.address("parkedmessage_discard") + selected),
        button(_("Hold…"), "hold", model_admin.address("parkedmessage_hold") + selected),
    ]
    if message.state == State.ON_HOLD:
        buttons[-1] = button(
            _("Take off hold"), "unhold", model_admin.address("parkedmessage_unhold", message.pk), post=True
        )
    export = model_admin.address("parkedmessage_export") + selected
    exporting = Button(label=_("Export…"), address=export, why=pages.refusal(request, "export", message))
    if message.state == State.DISCARDED:
        why = pages.refusal(request, "restore", message)
        address = model_admin.address("parkedmessage_restore", message.pk)
        return [Button(label=_("Restore"), address=address, why=why, post=True, kind="main"), exporting]
    return [*buttons, exporting] if message.open else [exporting]


def _found(object_id: str) -> ParkedMessage:
    message = found_or_404(object_id)
    same = ParkedMessage.objects.filter(state=OuterRef("state"))
    newer = same.filter(parked_at__gt=OuterRef("parked_at")).order_by("parked_at", "pk").values("pk")[:1]
    older = same.filter(parked_at__lt=OuterRef("parked_at")).order_by("-parked_at", "-pk").values("pk")[:1]
    known = attempts_of(message).filter(cycle=message.cycle, number__lte=_told(message)).exclude(verdict="ack")
    counted = known.order_by().values("cycle").annotate(n=Count("number", distinct=True)).values("n")
    behind = blocked_by(message).values("waiting")[:1]
    asked = (Subquery(newer), Subquery(older), Subquery(counted), Subquery(behind))
    beside = ParkedMessage.objects.filter(pk=message.pk).values_list(*asked).first()
    columns = beside or (None, None, None, None)
    message.newer, message.older, message.known, message.behind = columns  # type: ignore[attr-defined]  # page attributes
    return message


def _told(message: ParkedMessage) -> int:
    """Return the attempts of this cycle that the message itself reports, by its stamp or by the broker's count."""
    try:
        headers = decode_properties(bytes(message.properties)).headers
    except UndecodableHeaders:
        return message.attempts
    return max(message.attempts, min(rejections(headers, message.queue), MOST_TOLD))


def _unrecorded(message: Any) -> str:
    """Return a warning if the history has fewer attempts than the message reports.

    The message reports its attempts up to its last arrival in the parked queue.
    """
    reported, known = _told(message), message.known or 0
    if reported <= known or (message.requeued_at is not None and message.requeued_at > message.parked_at):
        return ""
    text = ngettext(
        "The message reports %(reported)d attempts, but the history has %(known)d. %(count)d attempt was not "
        "recorded: its consumer crashed, or was an older version or another program.",
        "The message reports %(reported)d attempts, but the history has %(known)d. %(count)d attempts were "
        "not recorded: their consumer crashed, or was an older version or another program.",
        reported - known,
    )
    return text % {"reported": reported, "known": known, "count": reported - known}


def _history(request: HttpRequest, message: ParkedMessage) -> dict[str, Any]:
    attempts = attempts_of(message)[: ATTEMPTS + 1]
    shown = list(attempts)
    items = list(RequeueItem.objects.filter(message=message.pk).select_related("run").order_by("-pk")[:ACTIONS])
    about = Q(message=message.pk) | Q(run__in={item.run_id for item in items})
    actions = list(OperatorAction.objects.filter(about).order_by("-number")[:ACTIONS])
    no_traces = pages.refusal(request, "view_traceback", message)
    if no_traces:
        for attempt in shown:
            attempt.chain, attempt.logs = [], ""
    others = bool(pages.refusal(request, "view_all_audit"))
    no_activity = pages.refusal(request, "view_audit")
    seen = [action for action in actions if not no_activity and (not others or action.actor_id == request.user.pk)]
    return {
        "items": items,
        "events": timeline(
            message, shown[:ATTEMPTS], [action for action in actions if action.message == message.pk], items
        ),
        "more_attempts": len(shown) > ATTEMPTS,
        "no_traces": no_traces,
        "activity": with_reasons(seen),
        "no_activity": no_activity,
    }


def _contents(request: HttpRequest, message: ParkedMessage, shown: tuple[str, ...]) -> dict[str, Any]:
    body, properties = bytes(message.body), bytes(message.properties)
    version = None
    if message.version > 1 and request.GET.get("version") != "1":
        version = message.versions.filter(number=message.version).first()
    if version is not None:
        body, properties = bytes(version.body), bytes(version.properties)
    whole = whole_of(request, message)
    return {
        "body": look(body, message.content_type, whole=whole, shown=shown),
        "heading": heading(properties, whole=whole, shown=shown),
        "whole": whole,
        "version": version,
        "why_not_reveal": pages.refusal(request, "reveal", message),
        "revealed": shown,
    }


def _become(message: ParkedMessage, items: list[RequeueItem]) -> dict[str, Any]:
    """Return the message's outcome since it was parked, for the top of the page; empty while it is open."""
    run = next((item.run for item in items if item.sent_at), None)
    names = {"run": run.pk, "name": run.by} if run else {}
    if message.state == State.PROCESSED:
        text = _("Processed {when} after requeue run {run} by {name}.") if run else _("Processed {when}.")
        return {"become": format_html(text, when=rmq_minute(message.succeeded_at or message.resolved_at), **names)}
    if message.state in (State.REQUEUED, State.REQUEUEING):
        text = _("Requeued {when}; its outcome is not known yet.")
        if run:
            text = _("Requeued {when} in requeue run {run} by {name}; its outcome is not known yet.")
        return {"become": format_html(text, when=rmq_minute(message.requeued_at), **names)}
    return {"become": _("Discarded: it will not be handled.") if message.state == State.DISCARDED else ""}


def _summary(message: ParkedMessage) -> str:
    """Return a sentence on the failed attempts and the reason for parking."""
    text = _("It was parked before it reached a handler: %(reason)s.")
    if message.attempts:
        text = ngettext(
            "It failed %(count)d time, then it was parked: %(reason)s.",
            "It failed %(count)d times, then it was parked: %(reason)s.",
            message.attempts,
        )
    return text % {"count": message.attempts, "reason": reason_text(message.reason)}
