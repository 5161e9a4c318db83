"""The admin of the audit log."""

from collections.abc import Collection, Iterator, Mapping
from copy import copy
from functools import partial
from types import SimpleNamespace
from typing import Any

from django.contrib import admin
from django.contrib.admin import SimpleListFilter
from django.contrib.admin.views.main import ChangeList
from django.db.models import Q, QuerySet
from django.http import HttpRequest, HttpResponse
from django.urls import path
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.text import capfirst
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, npgettext

from django_rmq_retry.admin import exports, labels, pages
from django_rmq_retry.admin.labels import column, cut, labelled
from django_rmq_retry.admin.message_list import CappedPaginator
from django_rmq_retry.admin.pages import Pages, frame_of, migrated
from django_rmq_retry.models import Action, OperatorAction, RequeueItem
from django_rmq_retry.parked.edit import plain
from django_rmq_retry.parked.key_lists import keys_of, written
from django_rmq_retry.parked.selection import EXCEPT, LISTED, number_in, numbers_of
from django_rmq_retry.templatetags.rmq_retry import NOTHING, rmq_clock

MOST_MEANT = 200
"""The most requeue runs that a search by message includes."""
SEVERAL = (Action.DISCARD, Action.RESTORE, Action.HOLD, Action.UNHOLD, Action.EXPORT)
"""Actions on several messages without a requeue run."""
MOST_READ = 20_000
"""The most actions on several messages that a search reads."""
CHUNK = 500
"""Such actions read by one statement; each may name thousands of messages."""
NAMING = Q(facts__has_key="messages") | Q(facts__selection__has_key="ids")
"""Actions on several messages that name them."""
UNREAD = "rmq_retry_unread"
"""A request attribute: true if the search left older actions unread."""
SOURCES = ("admin", "cli", "code")


class ByNumber(SimpleListFilter):
    """A filter shown only while it is set, by a link or by a number in the address."""

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        chosen = request.GET.get(str(self.parameter_name), "")
        return [(chosen, f"#{chosen}")] if chosen.isdecimal() else []

    def queryset(self, request: HttpRequest, queryset: QuerySet[OperatorAction]) -> QuerySet[OperatorAction]:
        value = self.value()
        return queryset.filter(**{str(self.parameter_name): int(value)}) if value else queryset


class BySource(SimpleListFilter):
    """A filter with fixed choices: to query the log for them would read all of it."""

    title = gettext_lazy("source")
    parameter_name = "source"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [(source, source) for source in SOURCES]

    def queryset(self, request: HttpRequest, queryset: QuerySet[OperatorAction]) -> QuerySet[OperatorAction]:
        return queryset.filter(source=self.value()) if self.value() else queryset


class ByMessage(ByNumber):
    title = gettext_lazy("message")
    parameter_name = "message"


class ByGroup(ByNumber):
    title = gettext_lazy("group")
    parameter_name = "group"


class ByRun(ByNumber):
    title = gettext_lazy("run")
    parameter_name = "run"


class ActList(ChangeList):
    """The list of actions; its title names the whole log."""

    unread = ""
    """A note that a search did not read all of the log; empty if it did."""

    def get_results(self, request: HttpRequest) -> None:
        super().get_results(request)
        if getattr(request, UNREAD, False):
            said = _("Only the newest %(count)d actions on several messages were searched by message.")
            self.unread = said % {"count": MOST_READ}

    @property
    def counted(self) -> "ActList":
        """Return a copy with the name of its rows, singular or plural, for the line below them."""
        name = npgettext("counted", "action", "actions", self.result_count)
        same = copy(self)
        same.opts = SimpleNamespace(verbose_name=name, verbose_name_plural=name)  # type: ignore[assignment]  # names only
        return same


@admin.register(OperatorAction)
class OperatorActionAdmin(Pages):
    """The list of actions, newest first, with a page for the facts of each."""

    list_display = ("when", "who", "act", "about", "of_messages", "why", "place")
    list_display_links = ("when",)
    list_filter = ("action", BySource, ByMessage, ByGroup, ByRun)
    search_fields = ("actor_name__exact",)
    search_help_text = gettext_lazy(
        "The name of an operator, as shown in the list, or a message by its business key, message id or "
        "number such as #17. A search by message also finds requeue runs, and actions on messages that were "
        "chosen one by one or by a list of keys."
    )
    ordering = ("-number",)
    sortable_by = ()
    paginator = CappedPaginator
    change_list_template = "admin/rmq_retry/operatoraction/list.html"

    when = admin.display(description=gettext_lazy("When"))(lambda _self, act: rmq_clock(act.at))
    act = admin.display(description=gettext_lazy("Action"))(lambda _self, act: act.get_action_display())
    why = admin.display(description=gettext_lazy("Reason"))(
        lambda _self, act: labelled(_("Reason"), cut(labels.act_reason(act)) or NOTHING)
    )

    place = column(OperatorAction, "source")

    @admin.display(description=gettext_lazy("Messages"))
    def of_messages(self, act: OperatorAction) -> SafeString:
        return labelled(_("Messages"), NOTHING if act.queue else act.count)

    @admin.display(description=gettext_lazy("Operator"))
    def who(self, act: OperatorAction) -> str:
        return cut(f"{act.actor_name} ({act.behalf})" if act.behalf else act.actor_name)

    @admin.display(description=gettext_lazy("Subject"))
    def about(self, act: OperatorAction) -> SafeString | str:
        """Return a link to the action's object; the link's text stays readable after the object is deleted."""
        for number, page in ((act.message, "parkedmessage"), (act.run, "requeuerun"), (act.group, "errorgroup")):
            if number is not None:
                return format_html('<a href="{}">{}</a>', self.address(f"{page}_change", number), _subject(act, number))
        return cut(act.subject) or NOTHING

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ChangeList]:
        return ActList

    def get_queryset(self, request: HttpRequest) -> QuerySet[OperatorAction]:
        rows = super().get_queryset(request)
        return rows if not pages.refusal(request, "view_all_audit") else rows.filter(actor=request.user.pk)

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[OperatorAction], search_term: str
    ) -> tuple[QuerySet[OperatorAction], bool]:
        asked = search_term.strip()
        if not asked:
            return queryset, False
        number = number_in(asked.removeprefix("#")) if asked.startswith("#") else None
        found, more = _about(numbers_of(asked) if number is None else [number], queryset)
        setattr(request, UNREAD, more)
        # The subject is the message's name at that time: it finds the action after the message is deleted.
        named = Q(actor_name=asked) | Q(message__isnull=False, subject=asked)
        return queryset.filter(found if number is not None else named | found), False

    def get_urls(self) -> list[Any]:
        view = self.admin_site.admin_view(partial(exports.audit, self))
        return [path("export/", view, name="rmq_retry_operatoraction_export"), *super().get_urls()]

    @migrated
    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> HttpResponse:
        why = pages.refusal(request, "view_audit")
        if why:
            return self.refused(request, why)
        chosen = request.GET.urlencode()
        export = f"{self.address('operatoraction_export')}?{chosen}"
        more = {
            "only_own": pages.refusal(request, "view_all_audit"),
            "export_address": "" if pages.refusal(request, "export") else export,
        }
        return super().changelist_view(
            request,
            {"title": capfirst(self.opts.verbose_name_plural), **frame_of(request), **more, **(extra_context or {})},
        )

    @migrated
    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: Any = None
    ) -> HttpResponse:
        why = pages.refusal(request, "view_audit")
        found = self.get_queryset(request).filter(pk=object_id).first() if object_id.isdecimal() else None
        if why or found is None:
            return self.refused(
                request, why or pages.refusal(request, "view_all_audit") or _("There is no such action.")
            )
        facts = [(name, plain(value)) for name, value in (found.details or {_("facts"): found.facts}).items()]
        title = _("%(act)s by %(name)s") % {"act": found.get_action_display(), "name": found.actor_name}
        return self.page(
            request,
            "operatoraction/action.html",
            title=title,
            act=found,
            facts=facts,
            about=self.about(found),
            why=labels.act_reason(found),
            listed=_listed(found),
        )


def _listed(act: OperatorAction) -> list[tuple[str, str]]:
    """Return the keys by which the action's messages were chosen, or left out."""
    chosen = _inside(act.details, "selection", "filter")
    titles = {LISTED: _("Keys of the list"), EXCEPT: _("Left out")}
    lists = [(title, _inside(chosen, name).get("list")) for name, title in titles.items()]
    return [(title, written(keys_of(number))) for title, number in lists if isinstance(number, int)]


def _about(messages: Collection[int], acts: QuerySet[OperatorAction]) -> tuple[Q, bool]:
    """Return the filter for all actions that affected these messages, and True if older ones were not read.

    It finds actions on a message itself, on a requeue run that included it, and on several messages with it.
    """
    if not messages:
        return Q(pk__in=()), False
    runs = RequeueItem.objects.filter(message__in=messages).values_list("run", flat=True).distinct()
    found, more = _naming(set(messages), acts)
    return Q(message__in=messages) | Q(run__in=list(runs[:MOST_MEANT])) | Q(pk__in=found), more


def _naming(messages: Collection[int], acts: QuerySet[OperatorAction]) -> tuple[list[int], bool]:
    """Return the actions whose facts name one of these messages, and True if older ones were not read.

    The numbers are compared here because SQLite cannot search a list of them.
    """
    several = acts.filter(NAMING, message__isnull=True, run__isnull=True, action__in=SEVERAL)
    found: list[int] = []
    for place, (pk, facts) in enumerate(_newest(several)):
        if place == MOST_READ:
            return found, True
        if any(number in messages for number in _named_in(facts)):
            found.append(pk)
    return found, False


def _newest(acts: QuerySet[OperatorAction]) -> Iterator[tuple[int, Any]]:
    """Yield the actions, newest first, by one statement per slice: some databases return a whole result at once."""
    rows = acts.order_by("-number").values_list("number", "pk", "facts")
    chunk = list(rows[:CHUNK])
    while chunk:
        yield from ((pk, facts) for _number, pk, facts in chunk)
        chunk = list(rows.filter(number__lt=chunk[-1][0])[:CHUNK])


def _named_in(facts: object) -> Iterator[int]:
    """Return the affected messages; if the row does not have them, those that were chosen one by one."""
    acted_on = facts.get("messages") if isinstance(facts, dict) else None
    if isinstance(acted_on, list):
        return (number for number in acted_on if isinstance(number, int))
    if _inside(facts, "selection", "filter"):
        # With a filter beside it, some of the messages chosen by number were left out.
        return iter(())
    return (number for text in _inside(facts, "selection", "ids") if (number := number_in(text)) is not None)


def _inside(facts: object, *names: str) -> Mapping[str, Any]:
    """Follow these names into the facts; empty if the row was written by other software and holds something else."""
    for name in names:
        facts = facts.get(name) if isinstance(facts, Mapping) else None
    return facts if isinstance(facts, Mapping) else {}


def _subject(act: OperatorAction, number: int) -> str:
    if act.message is not None:
        return cut(act.subject) or f"#{number}"
    if act.run is not None:
        return _("run %(number)d") % {"number": number}
    return _("group #%(number)d") % {"number": number}
