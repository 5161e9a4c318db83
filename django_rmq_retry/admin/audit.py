"""The audit log: who did what, when, why. Nobody changes it here; who may not see others' acts sees the own ones."""

from copy import copy
from functools import partial
from types import SimpleNamespace
from typing import Any

from django.contrib import admin
from django.contrib.admin import SimpleListFilter
from django.contrib.admin.views.main import ChangeList
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.urls import path
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.text import capfirst
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, npgettext

from django_rmq_retry.admin import allowing, exporting, labels
from django_rmq_retry.admin.listing import CappedPaginator
from django_rmq_retry.admin.pages import Pages, frame_of, migrated
from django_rmq_retry.admin.rows import cut
from django_rmq_retry.models import OperatorAction
from django_rmq_retry.operating.filtering import number_in
from django_rmq_retry.templatetags.rmq_retry import NOTHING, rmq_clock

SOURCES = ("admin", "cli", "code")


class ByNumber(SimpleListFilter):
    """Shown where it is chosen: one comes by a link, or writes the number into the address."""

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        chosen = request.GET.get(str(self.parameter_name), "")
        return [(chosen, f"#{chosen}")] if chosen.isdecimal() else []

    def queryset(self, request: HttpRequest, queryset: QuerySet[OperatorAction]) -> QuerySet[OperatorAction]:
        value = self.value()
        return queryset.filter(**{str(self.parameter_name): int(value)}) if value else queryset


class BySource(SimpleListFilter):
    """Its choices are known: to ask the log for them would read all of it."""

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
    """The log: its name is that of the whole, not of its rows."""

    @property
    def counted(self) -> "ActList":
        """The same, with a name for as many rows as there are, for the line below them."""
        name = npgettext("counted", "act", "acts", self.result_count)
        same = copy(self)
        same.opts = SimpleNamespace(verbose_name=name, verbose_name_plural=name)  # type: ignore[assignment]  # names only
        return same


@admin.register(OperatorAction)
class OperatorActionAdmin(Pages):
    """Rows, the newest first, with a page for the facts of each."""

    list_display = ("when", "who", "act", "about", "count", "why", "source")
    list_display_links = ("when",)
    list_filter = ("verb", BySource, ByMessage, ByGroup, ByRun)
    search_fields = ("actor_name__exact",)
    search_help_text = gettext_lazy("A name, as it stands in the list; or the number of a message as #17.")
    ordering = ("-number",)
    sortable_by = ()
    paginator = CappedPaginator
    change_list_template = "admin/rmq_retry/operatoraction/list.html"

    when = admin.display(description=gettext_lazy("When"))(lambda _self, act: rmq_clock(act.at))
    act = admin.display(description=gettext_lazy("What"))(lambda _self, act: act.get_verb_display())
    why = admin.display(description=gettext_lazy("Reason"))(lambda _self, act: cut(labels.act_reason(act)))

    @admin.display(description=gettext_lazy("Who"))
    def who(self, act: OperatorAction) -> str:
        return cut(f"{act.actor_name} ({act.behalf})" if act.behalf else act.actor_name)

    @admin.display(description=gettext_lazy("About"))
    def about(self, act: OperatorAction) -> SafeString | str:
        """A link to what it was about; the words stay when the record is gone."""
        for number, page in ((act.message, "parkedmessage"), (act.run, "requeuerun"), (act.group, "errorgroup")):
            if number is not None:
                return format_html('<a href="{}">{}</a>', self.address(f"{page}_change", number), _subject(act, number))
        return cut(act.subject) or NOTHING

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ChangeList]:
        return ActList

    def get_queryset(self, request: HttpRequest) -> QuerySet[OperatorAction]:
        rows = super().get_queryset(request)
        return rows if not allowing.refusal(request, "view_all_audit") else rows.filter(actor=request.user.pk)

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[OperatorAction], search_term: str
    ) -> tuple[QuerySet[OperatorAction], bool]:
        asked = search_term.strip()
        number = number_in(asked.removeprefix("#")) if asked.startswith("#") else None
        if number is not None:
            return queryset.filter(message=number), False
        return (queryset.filter(actor_name=asked) if asked else queryset), False

    def get_urls(self) -> list[Any]:
        view = self.admin_site.admin_view(partial(exporting.audit, self))
        return [path("export/", view, name="rmq_retry_operatoraction_export"), *super().get_urls()]

    @migrated
    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> HttpResponse:
        why = allowing.refusal(request, "view_audit")
        if why:
            return self.refused(request, why)
        chosen = request.GET.urlencode()
        export = f"{self.address('operatoraction_export')}?{chosen}"
        more = {
            "only_own": allowing.refusal(request, "view_all_audit"),
            "export_address": "" if allowing.refusal(request, "export") else export,
        }
        return super().changelist_view(
            request,
            {"title": capfirst(self.opts.verbose_name_plural), **frame_of(request), **more, **(extra_context or {})},
        )

    @migrated
    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: Any = None
    ) -> HttpResponse:
        why = allowing.refusal(request, "view_audit")
        found = self.get_queryset(request).filter(pk=object_id).first() if object_id.isdecimal() else None
        if why or found is None:
            return self.refused(
                request, why or allowing.refusal(request, "view_all_audit") or _("There is no such act.")
            )
        facts = [(name, value if isinstance(value, str) else _flat(value)) for name, value in found.facts.items()]
        title = _("%(act)s by %(name)s") % {"act": found.get_verb_display(), "name": found.actor_name}
        return self.page(
            request,
            "operatoraction/act.html",
            title=title,
            act=found,
            facts=facts,
            about=self.about(found),
            why=labels.act_reason(found),
        )


def _subject(act: OperatorAction, number: int) -> str:
    if act.message is not None:
        return cut(act.subject) or f"#{number}"
    if act.run is not None:
        return _("run %(number)d") % {"number": number}
    return _("group #%(number)d") % {"number": number}


def _flat(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} = {_flat(inner)}" for name, inner in value.items())
    return "; ".join(map(_flat, value)) if isinstance(value, list) else str(value)
