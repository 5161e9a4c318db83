"""The places of messages that were not parked: which of them a user may see, and the page that shows each."""

from collections.abc import Mapping, Sequence
from urllib.parse import urlencode

from django.http import HttpRequest
from django.utils.translation import ngettext

from django_rmq_retry.admin.pages import Pages, refusal
from django_rmq_retry.markup import counted
from django_rmq_retry.parked import operators
from django_rmq_retry.parked.elsewhere import Found, Room

Places = Mapping[str, Sequence[Found]]


def rooms_of(request: HttpRequest) -> list[Room]:
    """Return where else a search looks: where the user may."""
    may = {
        # The rules of a project are about parked messages: they cannot say of others who may see them.
        Room.OUTBOX: not (refusal(request, "view_outbox") or operators.has_own_rules(request.user)),
        Room.KEYS: not refusal(request, "view_key"),
        Room.RETRIES: not (refusal(request, "view_queue") or operators.has_own_rules(request.user)),
        Room.QUEUES: not refusal(request, "view_queue"),
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
    name = "blockedkey_changelist" if one.room is Room.KEYS else "queuecontrol_changelist"
    return f"{pages.address(name)}?{urlencode({'q': one.place})}"


def remark(places: Places) -> str:
    """Say that these keys of a list name messages that were not parked, so that no action on the list is for them."""
    text = ngettext(
        "%(count)d key names a message that was not parked, so it is not among these",
        "%(count)d keys name messages that were not parked, so they are not among these",
        len(places),
    )
    return counted(text, count=len(places))


def lines(places: Places) -> list[str]:
    return [f"{key} → {'; '.join(map(str, found))}" for key, found in places.items()]
