"""The messages that a page acts on: frozen when the page was first shown, without those of a list of keys."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import wraps
from hashlib import sha256
from typing import Any
from urllib.parse import urlencode

from django.contrib import messages
from django.db.models import Q
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect, QueryDict
from django.http.response import HttpResponseBase
from django.utils.text import capfirst
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from django_rmq_retry.admin import places
from django_rmq_retry.admin.pages import Pages, refusal
from django_rmq_retry.messages.texts import short
from django_rmq_retry.models import KeyList, ParkedMessage, State
from django_rmq_retry.parked import operators
from django_rmq_retry.parked.edited_keys import Others
from django_rmq_retry.parked.findings import DECIDED, RequeueFinding
from django_rmq_retry.parked.key_lists import (
    Excluded,
    KeyMatch,
    Lookup,
    Visible,
    excluded,
    keys_of,
    list_filter,
    matches_of_list,
    store,
)
from django_rmq_retry.parked.key_text import parse, text_of_keys
from django_rmq_retry.parked.operators import Actor, Refused
from django_rmq_retry.parked.outcome_texts import decisions_on
from django_rmq_retry.parked.selection import EXCEPT, LISTED, Selection, number_in
from django_rmq_retry.wording import counted

MOST_CHECKED = 2000
"""The most messages of a filter for which the project's rules are called before the request is sent."""
MOST_KEYS_SHOWN = 200
MOST_OTHERS_SHOWN = 10
MOST_OLDEST = 50
MOST_KEYS_NAMED = 5
"""The most keys in one sentence."""
CARRIED = ("canary", "held", "then", "listed", "category")
"""Query parameters that are kept besides the selection. ``listed`` has the filters of the list that led to the page."""
NOT_CARRIED = {
    "csrfmiddlewaretoken",
    "sel",
    "except",
    "leave_out",
    "too",
    "start",
    "toggle",
    "refresh",
    "typed",
    "checked",
}
"""Form fields that are not carried over when the form is shown again with another selection."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """The keys of a page: the field for those whose messages are left out, their effect, and those that chose."""

    text: str = ""
    wrong: str = ""
    """The reason that the typed text cannot be used."""
    effect: Excluded | None = None
    listed: Lookup | None = None
    """If the selection is a list of keys itself: the matches of these keys."""
    states: Sequence[str] = ()
    """The states of the messages that the list chooses."""
    ticked: str = ""
    """The doubtful keys that the operator has checked, as ``mark`` names them."""

    @property
    def lines(self) -> list[tuple[str, str, Sequence[str]]]:
        """Return the remarks about the keys: severity, sentence and keys of each."""
        if self.effect is None:
            return []
        missing = self.effect.missing
        alike = [f"{key} → {', '.join(others)}" for key, others in self.effect.alike.items()]
        outside = {key: f"{key} ({_states_of(some)})" for key, some in self.effect.elsewhere.items()}
        on_way = [outside.pop(key) for key in self.effect.on_way]
        elsewhere = list(outside.values())
        several = [f"{key} ({count})" for key, count in self.effect.several.items()]
        not_found = ngettext(
            "%(count)d key was not found, so no message is left out for it",
            "%(count)d keys were not found, so no message is left out for them",
            len(missing),
        )
        differ = ngettext(
            "%(count)d of them differs from a stored key in upper and lower case only",
            "%(count)d of them differ from stored keys in upper and lower case only",
            len(alike),
        )
        not_among = ngettext(
            "%(count)d key matches a message that is not among these anyway",
            "%(count)d keys match messages that are not among these anyway",
            len(elsewhere),
        )
        may_come = ngettext(
            "%(count)d key names a message that a requeue run sends or has sent, and that may still be handled",
            "%(count)d keys name messages that requeue runs send or have sent, and that may still be handled",
            len(on_way),
        )
        match_several = ngettext(
            "%(count)d key matches several messages: all of them are left out",
            "%(count)d keys match several messages: all of them are left out",
            len(several),
        )
        lines = [
            ("hm", may_come, on_way),
            ("hm", not_found, missing),
            ("hm", differ, alike),
            ("hm", places.remark(self.effect.unparked), places.lines(self.effect.unparked)),
            ("hm", in_content_remark(self.effect.in_content), _named_by(self.effect.in_content)),
            ("fyi", not_among, elsewhere),
            ("fyi", match_several, several),
        ]
        return [(kind, counted(text, count=len(some)), some[:MOST_KEYS_SHOWN]) for kind, text, some in lines if some]

    @property
    def listed_lines(self) -> list[tuple[str, Sequence[str]]]:
        """Return the remarks about the keys of a selected list that match no message, or several."""
        if self.listed is None:
            return []
        none = self.listed.missing
        copies, counts = set(self.listed.copies), self.listed.twice(self.states)
        of_one = _("%(key)s (%(count)d copies of one message)")
        twice = [of_one % {"key": key, "count": n} if key in copies else f"{key} ({n})" for key, n in counts.items()]
        not_found = ngettext(
            "%(count)d key of the list matches no message",
            "%(count)d keys of the list match no message",
            len(none),
        )
        match_several = ngettext(
            "%(count)d key of the list matches several messages: all of them are chosen",
            "%(count)d keys of the list match several messages: all of them are chosen",
            len(twice),
        )
        held = self.listed.kept_on_hold(self.states)
        on_hold = ngettext(
            "%(count)d key of the list names a message on hold, which is not among these",
            "%(count)d keys of the list name messages on hold, which are not among these",
            len(held),
        )
        unparked = self.listed.elsewhere
        in_content = self.listed.in_content
        lines = (
            (on_hold, held),
            (places.remark(unparked), places.lines(unparked)),
            (in_content_remark(in_content), _named_by(in_content)),
            (not_found, none),
            (match_several, twice),
        )
        return [(counted(text, count=len(some)), some[:MOST_KEYS_SHOWN]) for text, some in lines if some]

    @property
    def doubtful(self) -> list[str]:
        """Keys that match no parked message, several, one elsewhere or on hold: the operator has to check them."""
        listed = self.listed.doubtful(self.states) if self.listed else []
        return [*listed, *(self.effect.doubtful if self.effect else [])]

    @property
    def mark(self) -> str:
        """Return the value that ticks the present doubtful keys, and no others."""
        return sha256("\n".join(self.doubtful).encode(errors="backslashreplace")).hexdigest()[:16]

    @property
    def checked(self) -> bool:
        return self.ticked == self.mark

    @property
    def unchecked(self) -> str:
        """Return the sentence that refuses an action before the doubtful keys are ticked; else an empty text."""
        keys = self.doubtful
        if not keys or self.checked:
            return ""
        text = ngettext(
            "Check %(count)d key that matches no message, several, one elsewhere or on hold, and tick it: %(keys)s.",
            "Check %(count)d keys that match no message, several, one elsewhere or on hold, and tick them: %(keys)s.",
            len(keys),
        )
        named = ", ".join(short(key, 80) for key in keys[:MOST_KEYS_NAMED])
        return counted(text, count=len(keys), keys=named + "…" * (len(keys) > MOST_KEYS_NAMED))


def in_content_remark(found: Mapping[str, Sequence[KeyMatch]]) -> str:
    """Say that these keys stand in the contents of messages without a key, which no action on the keys is for."""
    text = ngettext(
        "%(count)d key stands only in the content of a parked message without a business key: decide on it by itself",
        "%(count)d keys stand only in the contents of parked messages without a business key: decide on each by itself",
        len(found),
    )
    return counted(text, count=len(found))


def _named_by(found: Mapping[str, Sequence[KeyMatch]]) -> list[str]:
    return [f"{key} → {', '.join(f'#{one.record}' for one in some)}" for key, some in found.items()]


def _states_of(matches: Sequence[KeyMatch]) -> str:
    """Return the states of messages, each with its number if there are several; first those that may be handled."""
    ordered = Counter(one.state for one in sorted(matches, key=lambda one: not one.on_way))
    words = {
        state: capfirst(_("requeued")) if state == State.REQUEUED else str(State(state).label) for state in ordered
    }
    if len(matches) == 1:
        return words[matches[0].state]
    return " · ".join(f"{words[state]} {count}" for state, count in ordered.items())


def choosing(title: Any) -> Callable[[Callable[..., HttpResponseBase]], Callable[..., HttpResponseBase]]:
    """Pass the chosen messages and the field for keys to leave out to a view.

    An address that names a group, a message or a requeue run redirects to the same page with a signed selection, and
    so does a form with other keys to leave out. If the selection cannot be used, the page gives the reason.
    """

    def decorate(view: Callable[..., HttpResponseBase]) -> Callable[..., HttpResponseBase]:
        @wraps(view)
        def answered(pages: Pages, request: HttpRequest) -> HttpResponseBase:
            try:
                token = request.POST.get("sel") or request.GET.get("sel") or ""
                if "ticked" in request.GET and "group" not in request.GET:
                    messages.warning(request, _("Tick at least one error group."))
                    return HttpResponseRedirect(pages.address("errorgroup_changelist"))
                named = _named(request) if request.method == "GET" and not token else None
                if named is not None:
                    return HttpResponseRedirect(f"{request.path}?{_query(request, named)}")
                selection = Selection.read(token)
                there = _with_typed_keys(request, selection)
                return there or view(pages, request, selection, left_out(request, selection))
            except Refused as why:
                return pages.page(request, "refusal.html", title=title, status=400, why=str(why))

        return answered

    return decorate


def _named(request: HttpRequest) -> Selection | None:
    message = number_in(request.GET.get("message", ""))
    for name in ("group", "failed_of_run", "unsent_of_run"):
        numbers = sorted({number for text in request.GET.getlist(name) if (number := number_in(text)) is not None})
        if numbers:
            several = name == "group" and len(numbers) > 1
            origin = {word: request.GET[word] for word in ("queue", "handler") if word in request.GET}
            held = name == "group" and request.GET.get("state") == State.ON_HOLD
            state = State.ON_HOLD if held else State.PARKED
            return Selection.of_filter({name: numbers if several else numbers[0], "state": [state], **origin})
    return None if message is None else Selection.of_ids([message])


def _query(request: HttpRequest, selection: Selection) -> str:
    carried = {name: request.GET[name] for name in CARRIED if name in request.GET}
    return urlencode({"sel": selection.token(), **carried})


def again(request: HttpRequest, selection: Selection) -> str:
    """Return the address that freezes the same selection again."""
    if selection.named:
        fresh = Selection.of_ids(selection.revisions).leaving_out(selection.filter.get(EXCEPT))
    else:
        fresh = Selection.of_filter(selection.filter)
    return f"{request.path}?{_query(request, fresh)}"


def back_of(pages: Pages, request: HttpRequest, selection: Selection) -> str:
    """Return the address of the error groups if the operator goes on there, of the only message, or of the list."""
    if request.GET.get("then") == "groups":
        return pages.address("errorgroup_changelist")
    listed = QueryDict(request.GET.get("listed", "")).urlencode()
    if len(selection.revisions) == 1 and not listed:
        return pages.address("parkedmessage_change", next(iter(selection.revisions)))
    if selection.group is not None:
        return pages.address("errorgroup_change", selection.group)
    return pages.address("parkedmessage_changelist") + (f"?{listed}" if listed else "")


def present_count(selection: Selection) -> int:
    """Return the number of messages now.

    Raise Refused if the selection has grown or is empty, unless all of its messages were left out.
    """
    count = selection.queryset().count()
    if count or EXCEPT not in selection.filter:
        selection.check(count)
    return count


def forbidden(request: HttpRequest, selection: Selection, *verbs: str) -> str:
    """Return the reason that the user may not do this; the project's rules are called for messages chosen by id."""
    why = refusal(request, *verbs, count=selection.count)
    if why or not selection.revisions:
        return why
    rows = selection.queryset().defer("body", "properties")
    return next((named(request, row, why) for row in rows if (why := refusal(request, *verbs, message=row))), "")


def kept_back(request: HttpRequest, verb: str, selection: Selection) -> list[int]:
    """Return the messages of a filter that the project's rules withhold, as checked for the oldest `MOST_CHECKED`."""
    if selection.named or not operators.has_own_rules(request.user):
        return []
    rows = selection.queryset().defer("body", "properties").order_by("parked_at", "pk")[:MOST_CHECKED]
    return [row.pk for row in rows.iterator(chunk_size=500) if refusal(request, verb, message=row)]


def rules_note(request: HttpRequest, selection: Selection) -> str:
    """Return a note if there are too many messages to call the project's rules for all of them."""
    if selection.named or selection.count <= MOST_CHECKED or not operators.has_own_rules(request.user):
        return ""
    text = _(
        "The project's rules were checked for the %(count)d oldest messages. Others that they forbid are "
        "left out when the requeue run sends them."
    )
    return counted(text, count=MOST_CHECKED)


def asking(
    pages: Pages,
    request: HttpRequest,
    template: str,
    selection: Selection,
    *,
    wrong: str,
    left_out: Q | None = None,
    **context: Any,
) -> HttpResponse:
    """Show the page that asks before an action; ``wrong`` is the reason that the button did nothing."""
    return pages.page(
        request,
        f"parkedmessage/{template}.html",
        status=422 if wrong else 200,
        selection=selection,
        token=selection.token(),
        sample=sample(request, selection, left_out=left_out),
        alone=selection.alone,
        back=back_of(pages, request, selection),
        typed=request.POST or request.GET,
        wrong={"all": wrong} if wrong else {},
        **context,
    )


def named(request: HttpRequest, message: ParkedMessage, why: str) -> str:
    """Return the reason with the message's name, or only its id if the user may not see it."""
    name = f"#{message.pk}" if refusal(request, "view", message=message) else str(message)
    return f"{name}: {why}"


def with_seen_examples(request: HttpRequest, finding: RequeueFinding) -> RequeueFinding:
    """Return the finding with only those examples that the user may see, and with what was decided on them."""
    examples = finding.examples
    if operators.has_own_rules(request.user) or refusal(request, "view"):
        rows = ParkedMessage.objects.filter(pk__in=[pk for pk, _name in examples]).defer("body", "properties")
        known = {row.pk for row in rows if not refusal(request, "view", message=row)}
        examples = tuple(one for one in examples if one[0] in known)
        if finding.name == "twins" and len(examples) < len(finding.examples):
            # What differs tells of the one that the user must not see.
            finding = replace(finding, decisions=(), later=())
    hidden = finding.name == "blocks_listed" and refusal(request, "view_key")
    decisions = [] if hidden else [one for one in finding.decisions if one[:2] in examples]
    return replace(
        finding, examples=examples, decisions=decisions_on(examples) if finding.name in DECIDED else decisions
    )


def sample(
    request: HttpRequest, selection: Selection, count: int = MOST_OLDEST, *, left_out: Q | None = None
) -> list[ParkedMessage]:
    """Return the oldest messages, without those that are left out or that the user may not see."""
    meant = selection.queryset().exclude(left_out) if left_out else selection.queryset()
    rows = meant.defer("body", "properties").order_by("parked_at", "pk")[:count]
    return [row for row in rows if not refusal(request, "view", message=row)]


def named_alone(request: HttpRequest, selection: Selection, text: str, count: int) -> str:
    """Return a text with the name of the only message; empty if there are several, or the user may not see it."""
    alone = sample(request, selection) if count == 1 else []
    return text % {"name": alone[0]} if alone else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TakenKeys:
    """The other messages that have a new business key of an edit, as a page shows them."""

    rows: Sequence[tuple[ParkedMessage, str]]
    """Some of them, those that the user may see, each with the keys."""
    count: int
    mark: str
    ticked: bool
    """True if the operator has said that they know exactly these, as they are now."""

    @property
    def more(self) -> int:
        return self.count - len(self.rows)


def taken_keys(request: HttpRequest, known: Others) -> TakenKeys:
    rows = ParkedMessage.objects.filter(pk__in=list(known.keys)[:MOST_OTHERS_SHOWN]).defer("body", "properties")
    seen = [row for row in rows.order_by("-pk") if not refusal(request, "view", message=row)]
    return TakenKeys(
        rows=[(row, ", ".join(known.keys[row.pk])) for row in seen],
        count=len(known),
        mark=known.mark,
        ticked=request.POST.get("known", "") == known.mark,
    )


def seen_by(request: HttpRequest) -> Visible | None:
    """Return a function that is True for a message the user may see; None if the project has no rules for the user."""
    if not operators.has_own_rules(request.user):
        return None
    return lambda row: not refusal(request, "view", message=row)


def _with_typed_keys(request: HttpRequest, selection: Selection) -> HttpResponseRedirect | None:
    """If the form names other keys to leave out, redirect to the same page with the new selection and all other fields.

    No button acts before that, so that the operator sees first which messages are left out. One adds keys of its own.
    """
    if "except" not in request.POST:
        return None
    try:
        keys = list(dict.fromkeys([*parse(request.POST["except"]), *parse(request.POST.get("too", ""))]))
    except Refused:
        # The page shows the text with the reason.
        return None
    if keys == _keys_left_out(selection):
        return None
    changed = selection.leaving_out(list_filter(store(keys, Actor.of_request(request))) if keys else None)
    if not {"leave_out", "too"} & request.POST.keys():
        text = _(
            "Nothing was done, because the keys to leave out had changed. They are left out now: check the "
            "result and press the button again."
        )
        messages.warning(request, text)
    kept = [(name, value) for name in request.POST if name not in NOT_CARRIED for value in request.POST.getlist(name)]
    there = [(name, request.GET[name]) for name in ("then", "listed") if name in request.GET]
    return HttpResponseRedirect(f"{request.path}?{urlencode([('sel', changed.token()), *kept, *there])}")


def _keys_left_out(selection: Selection) -> list[str]:
    listed = selection.filter.get(EXCEPT)
    return keys_of(listed["list"]) if listed else []


def left_out(request: HttpRequest, selection: Selection) -> LeftOut:
    """Return the keys by which messages are chosen or left out, with what is doubtful about them."""
    typed = request.POST.get("except", "")
    try:
        parse(typed)
    except Refused as why:
        return LeftOut(text=typed, wrong=str(why))
    keys, seen = _keys_left_out(selection), seen_by(request)
    known = KeyList.objects.filter(pk=selection.filter[LISTED]["list"]).first() if LISTED in selection.filter else None
    rooms = places.rooms_of(request) if keys or known else ()
    return LeftOut(
        text=text_of_keys(keys),
        effect=excluded(selection.filter[EXCEPT]["list"], selection.undiminished(), seen, rooms) if keys else None,
        listed=matches_of_list(known, seen, rooms) if known else None,
        states=selection.filter.get("state", State.values),
        ticked=request.POST.get("checked", ""),
    )
