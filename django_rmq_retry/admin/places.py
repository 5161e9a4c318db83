"""The places of messages that are not parked: which of them a user may see, and the page that shows each."""

from collections.abc import Iterable, Mapping, Sequence
from urllib.parse import urlencode

from django.http import HttpRequest
from django.utils.translation import ngettext

from django_rmq_retry.admin.pages import Pages, refusal
from django_rmq_retry.models import ParkedMessage
from django_rmq_retry.parked import operators
from django_rmq_retry.parked.findings import RequeueReport
from django_rmq_retry.parked.found import Found, Room
from django_rmq_retry.parked.selection import Selection
from django_rmq_retry.parked.twins import UNHANDLED, WAITING, Twins, each, twins_of, twins_of_sent
from django_rmq_retry.wording import counted

Places = Mapping[str, Sequence[Found]]


def rooms_of(request: HttpRequest) -> list[Room]:
    """Return where else a search looks: where the user may."""
    may = {
        # The rules of a project are about parked messages: they cannot say of others who may see them.
        Room.OUTBOX: not (refusal(request, "view_outbox") or operators.has_own_rules(request.user)),
        Room.KEYS: not refusal(request, "view_key"),
        Room.RETRIES: not (refusal(request, "view_queue") or operators.has_own_rules(request.user)),
        Room.QUEUES: not refusal(request, "view_queue"),
        Room.GONE: not (refusal(request, "view_audit") or operators.has_own_rules(request.user)),
        Room.HANDLERS: not refusal(request, "view_status"),
    }
    return [room for room in Room if may[room]]


def address_of(pages: Pages, one: Found) -> str:
    """Return the address of the page that shows it; empty if none does."""
    if one.place is None:
        return ""
    if one.room is Room.OUTBOX:
        return pages.address("outboxmessage_change", one.place)
    if one.room is Room.HANDLERS:
        return pages.address("consumerprocess_changelist")
    names = {Room.KEYS: "blockedkey_changelist", Room.GONE: "operatoraction_changelist"}
    return f"{pages.address(names.get(one.room, 'queuecontrol_changelist'))}?{urlencode({'q': one.place})}"


def beside(pages: Pages, request: HttpRequest, rows: Iterable[ParkedMessage]) -> list[tuple[Found, str]]:
    """Return what waits for its retry or in a halted queue and has a first key or an id of these messages."""
    return with_addresses(pages, each(twins_of(rows, {*rooms_of(request)} & {*WAITING})))


def beside_sent(
    request: HttpRequest, selection: Selection, found: RequeueReport, seen: Sequence[ParkedMessage]
) -> Twins:
    """Return what will be handled anyway and has a first key or an id of the messages to send."""
    return twins_of_sent(selection, found, rooms={*rooms_of(request)} & {*UNHANDLED}, seen=seen)


def with_addresses(pages: Pages, twins: Iterable[Found]) -> list[tuple[Found, str]]:
    return [(one, address_of(pages, one)) for one in twins]


def remark(places: Places) -> str:
    """Say that these keys of a list name messages that are not parked, so that no action on the list is for them."""
    text = ngettext(
        "%(count)d key names a message that is not parked, so it is not among these",
        "%(count)d keys name messages that are not parked, so they are not among these",
        len(places),
    )
    return counted(text, count=len(places))


def lines(places: Places) -> list[str]:
    return [f"{key} → {'; '.join(map(str, found))}" for key, found in places.items()]
