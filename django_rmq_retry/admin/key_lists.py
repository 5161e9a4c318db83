"""The page for a list of keys, and the field for keys to leave out."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlencode

from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from django_rmq_retry.admin import pages
from django_rmq_retry.admin.pages import Button, Pages
from django_rmq_retry.models import KeyList, ParkedMessage, State
from django_rmq_retry.parked import operators
from django_rmq_retry.parked.key_lists import (
    MOST_KEYS,
    Lookup,
    Match,
    Visible,
    excluded,
    keys_of,
    list_filter,
    look_up,
    matches_of_list,
    parse,
    store,
    written,
)
from django_rmq_retry.parked.operators import Actor, Refused
from django_rmq_retry.parked.selection import EXCEPT, LISTED, Selection, number_in

SHOWN = 200
"""The most keys of each kind that a page names; the export has all messages."""
EACH = 20
"""The most messages of one key that a page names."""
NOT_CARRIED = {"csrfmiddlewaretoken", "sel", "except", "leave_out", "start", "toggle", "refresh", "typed"}
"""Form fields that are not carried over when the form is shown again with another selection."""


def seen_by(request: HttpRequest) -> Visible | None:
    """Return a function that is True for a message the user may see; None if the project has no rules for the user."""
    if not operators.has_own_rules(request.user):
        return None

    def seen(row: ParkedMessage) -> bool:
        return not pages.refusal(request, "view", row)

    return seen


def view(model_admin: Pages, request: HttpRequest) -> HttpResponse:
    """Store a list and show the matches of each of its keys; the buttons lead to the pages that ask."""
    why = pages.refusal(request, "view")
    if why:
        return model_admin.refused(request, why)
    wrong, text = "", request.POST.get("keys", "")
    if request.method == "POST":
        try:
            return HttpResponseRedirect(f"{request.path}?list={_stored(request, text).pk}")
        except Refused as refusal:
            wrong = str(refusal)
    known = _mine(request) if request.GET.get("list") and not wrong else None
    lookup = matches_of_list(known, seen_by(request)) if known else None
    return model_admin.page(
        request,
        "parkedmessage/keys.html",
        title=_("A list of keys"),
        status=422 if wrong else 200,
        text=written(lookup.keys) if lookup else text,
        wrong={"keys": wrong} if wrong else {},
        most=MOST_KEYS,
        answer=lookup,
        **(_answer(model_admin, request, known, lookup) if known and lookup else {}),
    )


def _stored(request: HttpRequest, text: str) -> KeyList:
    keys = parse(text, spaces=bool(request.POST.get("spaces")))
    if not keys:
        raise Refused(_("Paste at least one business key or message id."))
    return store(keys, Actor.of_request(request), look_up(keys, seen_by(request)))


def _mine(request: HttpRequest) -> KeyList:
    """Return the list that the address names. Another user's list gives the same 404 as a missing one."""
    number = number_in(request.GET["list"])
    known = KeyList.objects.filter(pk=number, by_key=str(request.user.pk)).first() if number is not None else None
    if known is None:
        raise Http404(_("There is no such list of keys, or it was deleted after two days. Paste it again."))
    return known


def _answer(model_admin: Pages, request: HttpRequest, known: KeyList, lookup: Lookup) -> dict[str, Any]:
    held = bool(request.GET.get("held"))
    on_hold, waiting = lookup.records(State.ON_HOLD), {one.record for one in _matches(lookup) if one.run is not None}
    return {
        "found": [(key, lookup.matches[key]) for key in lookup.found[:SHOWN]],
        "closed": [(key, lookup.matches[key]) for key in lookup.closed[:SHOWN]],
        "several": [
            (key, lookup.matches[key][:EACH], len(lookup.matches[key]) - EACH) for key in lookup.several[:SHOWN]
        ],
        "missing": written(lookup.missing),
        "alike": list(lookup.alike.items())[:SHOWN],
        "spaced": len(lookup.spaced),
        "held": held,
        "on_hold": len(on_hold),
        "waiting": len(waiting & lookup.records(State.PARKED)),
        "address": f"{request.path}?list={known.pk}",
        "buttons": _buttons(model_admin, request, known, held=held),
    }


def _matches(lookup: Lookup) -> list[Match]:
    return [one for some in lookup.matches.values() for one in some]


def _buttons(model_admin: Pages, request: HttpRequest, known: KeyList, *, held: bool) -> list[Button]:
    states = [State.PARKED.value, *([State.ON_HOLD.value] if held else [])]
    words = {"held": "1"} if held else {}
    chosen, every = (_of(known, states), _of(known, State.values))
    of_chosen = (
        (_("Requeue %(count)d…"), "requeue", "requeuerun_preview", chosen.count),
        (_("Discard %(count)d…"), "discard", "parkedmessage_discard", None),
        (_("Hold %(count)d…"), "hold", "parkedmessage_hold", None),
    )
    buttons = [
        Button(
            label=label % {"count": chosen.count},
            address=f"{model_admin.address(page)}?{urlencode({'sel': chosen.token(), **words})}",
            why=pages.refusal(request, verb, count=count),
            kind="" if verb != "requeue" else "main",
        )
        for label, verb, page, count in of_chosen
    ]
    export = Button(
        label=_("Export %(count)d…") % {"count": every.count},
        address=f"{model_admin.address('parkedmessage_export')}?{urlencode({'sel': every.token()})}",
        why=pages.refusal(request, "export"),
    )
    return [*(buttons if chosen.count else []), *([export] if every.count else [])]


def _of(known: KeyList, states: Sequence[str]) -> Selection:
    return Selection.of_filter({LISTED: list_filter(known), "state": list(states)})


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """The messages that a preview leaves out because of a list of keys."""

    text: str = ""
    wrong: str = ""
    keys: int = 0
    messages: int = 0
    missing: Sequence[str] = ()
    alike: Sequence[tuple[str, Sequence[str]]] = ()
    elsewhere: Sequence[tuple[str, Match]] = ()
    """Keys whose messages are not among the chosen ones."""
    several: Sequence[tuple[str, int]] = ()
    listed: Sequence[tuple[str, int]] = field(default_factory=tuple)
    """If the selection is a list of keys itself: the keys that match several messages, and how many."""

    @property
    def lines(self) -> list[tuple[str, str, Sequence[str]]]:
        """Return the remarks about the keys: severity, sentence and keys of each."""
        return [(kind, text % {"count": len(some)}, some[:SHOWN]) for kind, text, some in self._lines() if some]

    def _lines(self) -> list[tuple[str, str, Sequence[str]]]:
        missing, elsewhere, several = self.missing, self.elsewhere, self.several
        return [
            (
                "hm",
                ngettext(
                    "%(count)d key was not found, so no message is left out for it",
                    "%(count)d keys were not found, so no message is left out for them",
                    len(missing),
                ),
                missing,
            ),
            (
                "hm",
                ngettext(
                    "%(count)d of them differs from a stored key in upper and lower case only",
                    "%(count)d of them differ from stored keys in upper and lower case only",
                    len(self.alike),
                ),
                [f"{key} → {', '.join(others)}" for key, others in self.alike],
            ),
            (
                "fyi",
                ngettext(
                    "%(count)d key matches a message that is not among these anyway",
                    "%(count)d keys match messages that are not among these anyway",
                    len(elsewhere),
                ),
                [f"{key} ({State(one.state).label})" for key, one in elsewhere],
            ),
            (
                "fyi",
                ngettext(
                    "%(count)d key matches several messages: all of them are left out",
                    "%(count)d keys match several messages: all of them are left out",
                    len(several),
                ),
                [f"{key} ({count})" for key, count in several],
            ),
        ]

    @property
    def twice(self) -> list[str]:
        """Return the keys of a selected list that match several messages, as the preview shows them."""
        return [f"{key} ({count})" for key, count in self.listed[:SHOWN]]


def changed(request: HttpRequest) -> HttpResponse | None:
    """If the form names other keys to leave out, redirect to the same page with the new selection.

    No button acts before that, so that the operator sees first which messages are left out.
    """
    text = request.POST.get("except")
    if text is None:
        return None
    selection = pages.chosen(request)
    try:
        keys = parse(text)
    except Refused:
        return None
    if keys == _left_out_by(selection):
        return None
    listed = list_filter(store(keys, Actor.of_request(request))) if keys else None
    return _again(request, selection.leaving_out(listed))


def left_out(request: HttpRequest, selection: Selection) -> Left:
    """Return the messages that a preview leaves out; if the form's text is invalid, the text with the reason."""
    text = request.POST.get("except", "")
    known = _left_out_by(selection)
    try:
        parse(text)
    except Refused as refusal:
        return Left(text=text, wrong=str(refusal), keys=len(known))
    return _told(request, selection, known)


def _left_out_by(selection: Selection) -> list[str]:
    listed = selection.filter.get(EXCEPT)
    return keys_of(listed["list"]) if listed else []


def _again(request: HttpRequest, selection: Selection) -> HttpResponse:
    """Redirect to the same page with the new selection and all other fields of the form."""
    if "leave_out" not in request.POST:
        text = _(
            "Nothing was done, because the keys to leave out had changed. They are left out now: check the "
            "result and press the button again."
        )
        messages.warning(request, text)
    kept = [(name, value) for name in request.POST if name not in NOT_CARRIED for value in request.POST.getlist(name)]
    return HttpResponseRedirect(f"{request.path}?{urlencode([('sel', selection.token()), *kept])}")


def _told(request: HttpRequest, selection: Selection, known: Sequence[str]) -> Left:
    seen = seen_by(request)
    listed = _several(selection, seen) if LISTED in selection.filter else ()
    if not known:
        return Left(listed=listed)
    left = excluded(known, selection.leaving_out(None).queryset(), seen)
    return Left(
        text=written(known),
        keys=len(known),
        messages=left.messages,
        missing=left.missing,
        alike=list(left.alike.items()),
        elsewhere=list(left.elsewhere.items()),
        several=list(left.several.items()),
        listed=listed,
    )


def _several(selection: Selection, seen: Visible | None) -> list[tuple[str, int]]:
    """Return the keys that match more than one message each, if the selection is a list of keys."""
    known = KeyList.objects.filter(pk=selection.filter[LISTED]["list"]).first()
    lookup = matches_of_list(known, seen) if known else None
    states = selection.filter.get("state", State.values)
    counts = (
        [(key, sum(one.state in states for one in lookup.matches[key])) for key in lookup.several] if lookup else []
    )
    return [(key, count) for key, count in counts if count > 1]
