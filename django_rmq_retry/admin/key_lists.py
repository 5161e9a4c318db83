"""The page for a list of keys."""

from collections.abc import Sequence
from typing import Any
from urllib.parse import urlencode

from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from django_rmq_retry.admin import places
from django_rmq_retry.admin.broker_look import waiting_seen
from django_rmq_retry.admin.choice import MOST_KEYS_SHOWN, seen_by
from django_rmq_retry.admin.pages import Button, Pages, migrated, refusal, requires
from django_rmq_retry.models import KeyList, ParkedMessage, State
from django_rmq_retry.parked.findings import FINDING_TEXTS
from django_rmq_retry.parked.found import Room
from django_rmq_retry.parked.key_lists import Lookup, list_filter, look_up, matches_of_list, store
from django_rmq_retry.parked.key_text import MOST_KEYS_OF_LIST, parse, text_of_keys
from django_rmq_retry.parked.may_have_run import may_have_run
from django_rmq_retry.parked.operators import Actor, Refused
from django_rmq_retry.parked.selection import LISTED, Selection, number_in
from django_rmq_retry.statements import with_one_of
from django_rmq_retry.wording import counted

MOST_MATCHES_SHOWN = 20
"""The most messages of one key that a page names; the export has all."""


@migrated
@requires("view")
def view(pages: Pages, request: HttpRequest) -> HttpResponse:
    """Store a list and show the matches of each of its keys; the buttons lead to the pages that ask."""
    wrong, text = "", request.POST.get("keys", "")
    if request.method == "POST":
        try:
            return HttpResponseRedirect(f"{request.path}?list={_store_list(request, text).pk}")
        except Refused as refused:
            wrong = str(refused)
    known = _own_list(request) if request.GET.get("list") and not wrong else None
    rooms = places.rooms_of(request) if known else ()
    lookup = matches_of_list(known, seen_by(request), rooms) if known else None
    return pages.page(
        request,
        "parkedmessage/keys.html",
        title=_("A list of keys"),
        status=422 if wrong else 200,
        text=text_of_keys(lookup.keys) if lookup else text,
        wrong={"keys": wrong} if wrong else {},
        most=MOST_KEYS_OF_LIST,
        answer=lookup,
        **(_answer(pages, request, known, lookup) if known and lookup else {}),
    )


def _store_list(request: HttpRequest, text: str) -> KeyList:
    keys = parse(text, spaces=bool(request.POST.get("spaces")))
    if not keys:
        raise Refused(_("Paste at least one business key or message id."))
    return store(keys, Actor.of_request(request), look_up(keys, seen_by(request)))


def _own_list(request: HttpRequest) -> KeyList:
    """Return the list that the address names. Another user's list gives the same 404 as a missing one."""
    number = number_in(request.GET["list"])
    known = KeyList.objects.filter(pk=number, by_key=str(request.user.pk)).first() if number is not None else None
    if known is None:
        raise Http404(_("There is no such list of keys, or it was deleted after two days. Paste it again."))
    return known


def _answer(pages: Pages, request: HttpRequest, known: KeyList, lookup: Lookup) -> dict[str, Any]:
    held = bool(request.GET.get("held"))
    states = _states(held=held)
    twice, copies = lookup.twice(states), set(lookup.copies)
    # Of copies none must be left out: it would be sent by the next requeue.
    unlike = {key: count for key, count in twice.items() if key not in copies}
    rest = [key for key in lookup.keys if key not in unlike]
    in_runs = {one.record for some in lookup.matches.values() for one in some if one.run is not None}

    def matches_of(keys: Sequence[str]) -> list[Any]:
        return [(key, lookup.matches[key]) for key in keys[:MOST_KEYS_SHOWN]]

    return {
        "found": matches_of(lookup.found),
        "held_keys": matches_of(lookup.held),
        "closed": matches_of(lookup.closed),
        "several": [
            (key, some[:MOST_MATCHES_SHOWN], len(some) - MOST_MATCHES_SHOWN, key in copies)
            for key, some in matches_of(lookup.several)
        ],
        "elsewhere": [
            (key, [(one, places.address_of(pages, one)) for one in found])
            for key, found in list(lookup.elsewhere.items())[:MOST_KEYS_SHOWN]
        ],
        "in_content": [(key, some[:MOST_MATCHES_SHOWN]) for key, some in lookup.in_content.items()][:MOST_KEYS_SHOWN],
        "stays": any(one.room is Room.RETRIES and not one.done for some in lookup.elsewhere.values() for one in some),
        "limits": lookup.limits if lookup.missing else "",
        "missing": text_of_keys(lookup.missing),
        "queued": 0 if refusal(request, "view_status") else waiting_seen(),
        "alike": list(lookup.alike.items())[:MOST_KEYS_SHOWN],
        "spelled": text_of_keys(dict.fromkeys(one for key in lookup.keys for one in lookup.alike.get(key, (key,)))),
        "further": matches_of([key for key in lookup.further if key not in unlike]),
        "otherwise": [(key, some[:MOST_MATCHES_SHOWN]) for key, some in lookup.otherwise.items()][:MOST_KEYS_SHOWN],
        "spaced": len(lookup.spaced),
        "held": held,
        "on_hold": len(lookup.records(State.ON_HOLD)),
        "waiting": len(in_runs & lookup.records(State.PARKED)),
        **_perhaps_handled(lookup),
        "address": f"{request.path}?list={known.pk}",
        "unlike": unlike,
        "unlike_messages": sum(unlike.values()),
        "copies": len(twice) - len(unlike),
        "rest": text_of_keys(rest) if unlike and any(lookup.matches.get(key) for key in rest) else "",
        "buttons": _buttons(pages, request, known, held=held),
    }


def _perhaps_handled(lookup: Lookup) -> dict[str, Any]:
    """Return how many of the open messages may have been handled, in words, and some of the keys that name them."""
    rows = ParkedMessage.objects.filter(may_have_run()).order_by()
    records = lookup.records(State.PARKED) | lookup.records(State.ON_HOLD)
    found = {pk for some in with_one_of(rows, "pk", records) for pk in some.values_list("pk", flat=True)}
    keys = [key for key, matches in lookup.matches.items() if any(one.record in found for one in matches)]
    text = str(FINDING_TEXTS["worker_stopped"] % {"count": len(found)}) if found else ""
    return {"perhaps": text, "perhaps_keys": keys[:MOST_MATCHES_SHOWN], "perhaps_more": len(keys) > MOST_MATCHES_SHOWN}


def _states(*, held: bool) -> list[str]:
    return [State.PARKED.value, *([State.ON_HOLD.value] if held else [])]


def _buttons(pages: Pages, request: HttpRequest, known: KeyList, *, held: bool) -> list[Button]:
    """Return the actions on the messages of a list.

    None is the main one: a list may name payments that were made in another way, or those that are to be made.
    """
    states = _states(held=held)
    chosen, every = (
        Selection.of_filter({LISTED: list_filter(known), "state": list(some)}) for some in (states, State.values)
    )
    on = {"held": "1"} if held else {}
    go_on = ngettext(
        "Discard %(count)d message, then go on to the error groups…",
        "Discard these %(count)d, then go on to the error groups…",
        chosen.count,
    )
    actions = (
        (go_on, "discard", "parkedmessage_discard", chosen, {**on, "then": "groups"}),
        (_("Discard %(count)d…"), "discard", "parkedmessage_discard", chosen, on),
        (_("Requeue %(count)d…"), "requeue", "requeuerun_preview", chosen, on),
        (_("Hold %(count)d…"), "hold", "parkedmessage_hold", chosen, on),
        (_("Export %(count)d…"), "export", "parkedmessage_export", every, on),
    )
    return [
        Button(
            label=counted(label, count=some.count),
            address=f"{pages.address(page)}?{urlencode({'sel': some.token(), **carried})}",
            why=refusal(request, verb, count=some.count),
        )
        for label, verb, page, some, carried in actions
        if some.count
    ]
