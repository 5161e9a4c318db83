"""The admin of the audit log."""

import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any
from urllib.parse import urlencode

from django.contrib import admin
from django.contrib.admin import SimpleListFilter
from django.contrib.admin.views.main import ChangeList
from django.db.models import Q, QuerySet
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.urls import URLPattern
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.text import capfirst
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext, npgettext

from django_rmq_retry.admin import exports, labels
from django_rmq_retry.admin.action_facts import facts_in_words
from django_rmq_retry.admin.cards import names_of
from django_rmq_retry.admin.labels import column, labelled, short_on_screen
from django_rmq_retry.admin.message_list import CappedPaginator, chosen_in, counted_as
from django_rmq_retry.admin.pages import MOST_RECORDS_LINKED, Listed, Pages, refusal
from django_rmq_retry.health.doubts import FINDING, NAMES, finding_of
from django_rmq_retry.markup import NOTHING, Count, count_or_dash, time_exact, visible
from django_rmq_retry.messages.texts import short
from django_rmq_retry.models import Action, ApprovalRequest, ErrorGroup, OperatorAction, ParkedMessage
from django_rmq_retry.models.audit import GROUPS, MESSAGES
from django_rmq_retry.parked.audit import (
    WHOLE_LOG,
    acts_about,
    acts_in,
    acts_meant,
    keys_left_out,
    messages_named,
    names_asked,
)
from django_rmq_retry.parked.edit import changes_in_one_line, stored_changes
from django_rmq_retry.parked.edit_many import PathChange
from django_rmq_retry.parked.key_lists import keys_of, unmatched_when_stored
from django_rmq_retry.parked.key_text import text_of_keys
from django_rmq_retry.parked.operators import has_own_rules
from django_rmq_retry.parked.selection import EXCEPT, LISTED, number_in
from django_rmq_retry.wording import counted

RANGES = re.compile(r"\d{1,18}(-\d{1,18})?( \d{1,18}(-\d{1,18})?)*", re.ASCII)
"""The form in which an action names several messages."""
MOST_SPANS_LINKED = 1000
MOST_GROUPS_LINKED = 20
LONGEST_KEY = 80
"""Bytes of a key in the list of actions."""
MOST_KEYS_NAMED = 50
"""The most keys that matched no parked message and are named apart from their list."""
MOST_KEYS_LINKED = 500
SOURCES = ("admin", "cli", "code")


class ByNumber(SimpleListFilter):
    """A filter shown only while it is set, by a link or by a number in the address."""

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        chosen = request.GET.get(str(self.parameter_name), "")
        return [(chosen, f"#{chosen}")] if chosen.isdecimal() else []

    def queryset(self, request: HttpRequest, queryset: QuerySet[OperatorAction]) -> QuerySet[OperatorAction]:
        value = number_in(self.value() or "")
        if value is None:
            return queryset
        name = str(self.parameter_name)
        if name == "group":
            return queryset.filter(acts_in(value))
        return queryset.filter(acts_about(value) if name == "message" else Q(**{name: value}))


class BySource(SimpleListFilter):
    """A filter with fixed choices: to query the log for them would read all of it."""

    title = gettext_lazy("source")
    parameter_name = "source"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [(source, source) for source in SOURCES]

    def queryset(self, request: HttpRequest, queryset: QuerySet[OperatorAction]) -> QuerySet[OperatorAction]:
        return queryset.filter(source=self.value()) if self.value() else queryset


class ByAction(SimpleListFilter):
    """A filter by the kind of an action, without its object: queues are paused as requeue runs are."""

    title = gettext_lazy("action")
    parameter_name = "action__exact"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        several: dict[str, Any] = {Action.PAUSE: _("Pause"), Action.RESUME: _("Resume")}
        return [(value, several.get(value, label)) for value, label in Action.choices]

    def queryset(self, request: HttpRequest, queryset: QuerySet[OperatorAction]) -> QuerySet[OperatorAction]:
        return queryset.filter(action=self.value()) if self.value() else queryset


def _by(number: str, label: Any) -> type[ByNumber]:
    return type(f"By_{number}", (ByNumber,), {"title": label, "parameter_name": number})


class ActionList(Listed):
    """The list of actions; its title names the whole log."""

    unknown = ""
    """Why a search found no action."""

    def get_results(self, request: HttpRequest) -> None:
        super().get_results(request)
        # What a search has not found is not searched again.
        self.result_list = list(self.result_list) if self.result_count else []
        groups = ErrorGroup.objects.in_bulk({action.group for action in self.result_list if action.group is not None})
        lists = {_list_of(action)[0] for action in self.result_list} - {0}
        left_out = keys_left_out(self.result_list, names_asked(self._asked))
        unmatched = unmatched_when_stored(lists) if lists and not _hides_keys(request) else {}
        for action in self.result_list:
            action.cause = groups.get(action.group)
            action.left_out = left_out.get(action.number, "")
            action.unmatched = len(unmatched.get(_list_of(action)[0], ()))

    @property
    def _asked(self) -> str:
        """What was searched for, and the message that a filter names."""
        number = self.params.get("message", "")
        return f"{self.query} #{number}" if number else self.query

    @property
    def counted(self) -> ChangeList:
        return counted_as(self, npgettext("counted", "action", "actions", self.result_count))

    @property
    def chosen(self) -> list[tuple[str, str]]:
        """What narrows the list, for a print: filters, also such as only an address can set, and the search."""
        named = [(name, value) for name, value, _address in chosen_in(self)]
        known = {name for spec in self.filter_specs for name in spec.expected_parameters()}
        return [*((name, ", ".join(map(str, values))) for name, values in self._others(known)), *named]

    def _others(self, known: Collection[str | None]) -> Iterator[tuple[str, Sequence[Any]]]:
        for name, values in self.get_filters_params().items():
            if name not in known:
                yield name, values if isinstance(values, (list, tuple)) else [values]

    @property
    def total(self) -> str:
        """How many actions the list finds, as far as they are counted."""
        return f"{count_or_dash(self.result_count)!s}{'+' if getattr(self.paginator, 'capped', False) else ''}"

    @property
    def pages(self) -> int:
        return 1 if self.show_all else int(self.paginator.num_pages)

    @property
    def page(self) -> int:
        return min(self.page_num, self.pages)

    @property
    def first(self) -> int:
        """The place of the page's first action among all that the list finds."""
        return (self.page - 1) * self.list_per_page + 1

    @property
    def last(self) -> int:
        return self.first + len(self.result_list) - 1


@admin.register(OperatorAction)
class OperatorActionAdmin(Pages):
    """The list of actions, newest first, with a page for the facts of each."""

    sees = "view_audit"
    list_display = ("when", "who", "action_name", "about", "of_messages", "why", "place")
    list_display_links = ("when",)
    list_filter = (
        ByAction,
        BySource,
        _by("message", gettext_lazy("message")),
        _by("group", gettext_lazy("group")),
        _by("run", gettext_lazy("requeue run")),
    )
    search_fields = ("actor_name",)
    search_help_text = gettext_lazy(
        "Parts of an operator's name or of a reason, such as a ticket, in the latest 200,000 actions, or a message by "
        "its business key, message id or number such as #17. All words must match. A search by message also finds "
        "requeue runs and actions on several messages, also after the message was deleted."
    )
    ordering = ("-number",)
    sortable_by = ()
    paginator = CappedPaginator
    change_list_template = "admin/rmq_retry/operatoraction/list.html"

    when = admin.display(description=gettext_lazy("When"))(
        lambda _self, action: format_html('{}<span class="rmq-paper"> #{}</span>', time_exact(action.at), action.number)
    )
    action_name = admin.display(description=gettext_lazy("Action"))(lambda _self, action: action.get_action_display())
    why = admin.display(description=gettext_lazy("Reason"))(
        lambda _self, action: labelled(_("Reason"), short_on_screen(labels.action_reason(action)) or NOTHING)
    )

    place = column(OperatorAction, "source")

    @admin.display(description=gettext_lazy("Messages"))
    def of_messages(self, action: OperatorAction) -> SafeString:
        return labelled(_("Messages"), count_or_dash(action.messages))

    @admin.display(description=gettext_lazy("Operator"))
    def who(self, action: OperatorAction) -> str:
        return short_on_screen(f"{action.who} ({action.behalf})" if action.behalf else action.who)

    @admin.display(description=gettext_lazy("Subject"))
    def about(self, action: Any) -> SafeString | str:
        told: list[SafeString | str] = [self._subject(action, action.unmatched)]
        if count := action.more_left_out:
            text = ngettext("%(counter)s more left out by a check", "%(counter)s more left out by a check", count)
            told.append(counted(text, counter=count))
        if action.left_out:
            told.append(_("%(key)s was left out") % {"key": visible(short(action.left_out, LONGEST_KEY))})
        return format_html_join(" · ", "{}", ((one,) for one in told))

    def _subject(self, action: OperatorAction, unmatched: int) -> SafeString | str:
        """Return the action's object with the run, if it has both; of a check also what was in doubt."""
        about, finding = self._object(action, unmatched), finding_of(action)
        more: SafeString | str = ""
        if action.message is not None and action.run is not None:
            more = self._run(action.run)
        elif finding and action.run is not None:
            more = action.subject
        named = format_html_join(" · ", "{}", ((one,) for one in (about, more) if one))
        return format_html("{}: {}", capfirst(finding), named) if finding else named

    def _object(self, action: OperatorAction, unmatched: int) -> SafeString | str:
        """Return the action's object, as a link if it has a page; its name stays readable after it is deleted."""
        if action.message is not None:
            return self._link("parkedmessage", action.message, short_on_screen(action.subject) or f"#{action.message}")
        place, by_hand = self._place(action), short_on_screen(action.subject) if _by_hand(action) else ""
        if place and by_hand:
            return format_html("{} · {}", place, by_hand)
        number, count = _list_of(action)
        if number and action.run is None:
            # The group is that of the messages that were found: it says nothing of what was meant.
            return _list_in_words(count, unmatched)
        subject = _("audit log") if action.subject == WHOLE_LOG else action.subject
        return place or short_on_screen(subject) or NOTHING

    def _place(self, action: OperatorAction) -> SafeString | str:
        """Return the run or the error group of an action as a link; empty if it has none."""
        if action.run is not None:
            return self._run(action.run)
        if action.group is not None:
            return self._link("errorgroup", action.group, self._cause(action))
        return _groups_counted(len(action.groups)) if action.groups else ""

    def _run(self, number: int) -> SafeString:
        return self._link("requeuerun", number, _("Requeue run %(number)s") % {"number": number})

    def _link(self, page: str, number: int, name: str) -> SafeString:
        return format_html('<a href="{}">{}</a>', self.address(f"{page}_change", number), name)

    def _cause(self, action: OperatorAction) -> str:
        """Return the name of the error group, or its number if it is deleted."""
        known = action.cause if hasattr(action, "cause") else ErrorGroup.objects.filter(pk=action.group or 0).first()
        return short_on_screen(str(known)) if known else _("group #%(number)d") % {"number": action.group or 0}

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ChangeList]:
        return ActionList

    def get_changelist_instance(self, request: HttpRequest) -> ChangeList:
        shown = super().get_changelist_instance(request)
        asked = shown.query.strip()
        if isinstance(shown, ActionList) and asked and not shown.result_count:
            shown.unknown = _why_nothing(request, asked)
        return shown

    def get_queryset(self, request: HttpRequest) -> QuerySet[OperatorAction]:
        rows = super().get_queryset(request)
        return rows if not refusal(request, "view_all_audit") else rows.filter(actor=request.user.pk)

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[OperatorAction], search_term: str
    ) -> tuple[QuerySet[OperatorAction], bool]:
        asked = search_term.strip()
        return (queryset.filter(acts_meant(asked)) if asked else queryset), False

    def own_urls(self) -> list[URLPattern]:
        return [self.own_url("export/", "export", partial(exports.audit, self))]

    def list_page(self, request: HttpRequest, **more: Any) -> HttpResponseBase:
        export = f"{self.address('operatoraction_export')}?{request.GET.urlencode()}"
        return super().list_page(
            request,
            only_own=refusal(request, "view_all_audit"),
            export_address="" if refusal(request, "export") else export,
        )

    def row_page(self, request: HttpRequest, object_id: str) -> HttpResponse:
        action = self.get_queryset(request).filter(pk=object_id).first() if object_id.isdecimal() else None
        if action is None:
            return self.refused(request, refusal(request, "view_all_audit") or _("There is no such action."))
        number, _count = _list_of(action)
        unmatched = unmatched_when_stored([number]).get(number, []) if number and not _hides_keys(request) else []
        ranges = str(action.details.get(MESSAGES, "")) or " ".join(_by_hand(action))
        # A row of other software may hold anything.
        records = self._records(ranges) if RANGES.fullmatch(ranges) else ""
        version = action.details.get("version") if action.action == Action.EDIT and action.message is not None else None
        said = _said(action) | ({MESSAGES} if records else set()) | ({"version"} if version else set())
        asked, change = self._asked(request, action), _change(request, action)
        groups = self._groups(action)
        said |= {GROUPS} if groups else set()
        said |= ({"request"} if asked else set()) | ({"change"} if change else set())
        # By hand chosen messages are the record numbers.
        said |= {"selection"} if records and action.inside("selection").get("ids") else set()
        title = _("%(action)s by %(name)s") % {"action": action.get_action_display(), "name": action.who}
        names = [str(one) for one in action.details.get(NAMES, ())] if finding_of(action) else []
        said |= {FINDING, NAMES} if finding_of(action) else set()
        lists = [*_listed(action), *([(_("What was checked"), names)] if names else [])]
        return self.page(
            request,
            "operatoraction/action.html",
            title=title,
            action=action,
            facts=list(facts_in_words(action, without=said)),
            version=version,
            asked=asked,
            change=change,
            records=records,
            groups=groups,
            unmatched=unmatched[:MOST_KEYS_NAMED],
            more_unmatched=len(unmatched) > MOST_KEYS_NAMED,
            count_unmatched=len(unmatched),
            about=self._subject(action, len(unmatched)),
            why=labels.action_reason(action),
            listed=[(title, self._keys(request, keys)) for title, keys in lists],
        )

    def _asked(self, request: HttpRequest, action: OperatorAction) -> SafeString | str:
        """Return the request that an action asked for, or followed from, with a link if it is still there."""
        number = action.details.get("request")
        known = ApprovalRequest.objects.filter(pk=number).first() if isinstance(number, int) else None
        if known is None:
            return ""
        linked = not refusal(request, "view_request")
        return self._link("approvalrequest", known.pk, str(known)) if linked else str(known)

    def _keys(self, request: HttpRequest, keys: Sequence[str]) -> SafeString | str:
        """Return the keys as a list to paste, the first with links to their messages, for a user who may see them."""
        text = visible(text_of_keys(keys))
        lines = text.split("\n")
        if len(lines) != len(keys) or refusal(request, "view"):
            return text
        messages = self.address("parkedmessage_changelist")
        asked = [f"{messages}?{urlencode({'state': 'all', 'q': key})}" for key in keys[:MOST_KEYS_LINKED]]
        linked = format_html_join("\n", '<a href="{}">{}</a>', zip(asked, lines, strict=False))
        return format_html("{}\n{}", linked, "\n".join(lines[len(asked) :])) if len(lines) > len(asked) else linked

    def _groups(self, action: OperatorAction) -> SafeString:
        """Return the largest error groups of an action on several, each with its number of messages."""
        largest = Counter(action.groups).most_common(MOST_GROUPS_LINKED)
        names = names_of(ErrorGroup.objects.filter(pk__in=[one for one, _count in largest]))
        linked = (
            (str(Count(count)), self._link("errorgroup", one, short_on_screen(names[one])))
            for one, count in largest
            if one in names
        )
        shown = format_html_join(" · ", "<strong>{}</strong> {}", linked)
        return format_html("{} · …", shown) if len(action.groups) > len(largest) else shown

    def _records(self, ranges: str) -> SafeString:
        """Return ranges of messages with links to the first and the last of each; of very many only the first ones."""
        spans = ranges.split()
        some = _numbers_of_few(spans)
        if some:
            return self.linked_records(some)
        shown = [self.linked_records(span.split("-"), between="-") for span in spans[:MOST_SPANS_LINKED]]
        more = ["…"] if len(spans) > MOST_SPANS_LINKED else []
        return format_html_join(" ", "{}", ((one,) for one in [*shown, *more]))


def _numbers_of_few(spans: Sequence[str]) -> list[int]:
    """Return each number of these ranges; none if they are many."""
    ends = [(int(first), int(last or first)) for first, _dash, last in (span.partition("-") for span in spans)]
    few = sum(max(last - first, 0) + 1 for first, last in ends) <= MOST_RECORDS_LINKED
    return [number for first, last in ends for number in range(first, last + 1)] if few else []


def _change(request: HttpRequest, action: OperatorAction) -> str:
    """Return in one line what an edit changed, for who may see the message; empty of another action."""
    version, change = action.details.get("version"), action.details.get("change")
    if action.action != Action.EDIT or refusal(request, "view", "view_payload"):
        return ""
    if isinstance(change, Mapping):
        # The log has no confidential values.
        with suppress(TypeError, ValueError):
            return PathChange(**change).sentence
    if not isinstance(version, int) or action.message is None:
        return ""
    message = ParkedMessage.objects.filter(pk=action.message).first()
    if message is None or refusal(request, "view", "view_payload", message=message):
        return ""
    return changes_in_one_line(stored_changes(message, version))


def _list_of(action: OperatorAction) -> tuple[int, int]:
    """Return number and length of the list of keys by which an action chose its messages; zeros if it did not."""
    listed = action.inside("selection", "filter", LISTED)
    number, count = listed.get("list"), listed.get("count")
    return (number, count) if isinstance(number, int) and isinstance(count, int) else (0, 0)


def _by_hand(action: OperatorAction) -> Mapping[str, Any]:
    """Return the messages of an action that were chosen one by one, if it names all of them."""
    ids = action.inside("selection", "ids")
    return ids if len(ids) == action.inside("selection").get("count") else {}


def _groups_counted(count: int) -> str:
    return ngettext("%(counter)s error group", "%(counter)s error groups", count) % {"counter": Count(count)}


def _list_in_words(count: int, unmatched: int) -> str:
    text = counted(ngettext("list of %(count)d key", "list of %(count)d keys", count), count=count)
    without = ngettext("%(count)d matched no parked message", "%(count)d matched no parked message", unmatched)
    return f"{text} ({counted(without, count=unmatched)})" if unmatched else text


def _hides_keys(request: HttpRequest) -> bool:
    """Return True for a user who does not see all messages, and must not learn which keys exist."""
    return bool(refusal(request, "view")) or has_own_rules(request.user)


def _why_nothing(request: HttpRequest, asked: str) -> str:
    """Return why a search finds no action. Who may not see all messages does not learn which of them exist."""
    if len(asked.split()) > 1:
        return _("No action has all of these words: %(text)s.") % {"text": asked}
    if _hides_keys(request) or messages_named(asked):
        return _("No action by or on %(text)s is recorded, and none with it in its reason.") % {"text": asked}
    text = _("No message has the key, id or number %(text)s, and it is in no operator's name and no reason.")
    return text % {"text": asked}


def _listed(action: OperatorAction) -> list[tuple[str, Sequence[str]]]:
    """Return the keys by which the action's messages were chosen, or left out."""
    titles = {LISTED: _("Keys of the list"), EXCEPT: _("Keys left out by the operator")}
    lists = [(title, action.inside("selection", "filter", name).get("list")) for name, title in titles.items()]
    return [(title, keys_of(number)) for title, number in lists if isinstance(number, int)]


def _said(action: OperatorAction) -> set[str]:
    """Return the facts that its page says already: the category that begins its reason, and that it is sealed."""
    begins = action.reason.partition(":")[0]
    return {"seal"} | ({"category"} if begins and action.details.get("category") == begins else set())
