"""The base of all pages: permissions, Django's own lists in our frame, and buttons."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial, wraps
from typing import Any, Concatenate, ParamSpec

from django.conf import settings as django_settings
from django.contrib import admin, messages
from django.contrib.admin.views.main import ChangeList
from django.contrib.auth import get_user_model
from django.core.exceptions import RequestDataTooBig
from django.db import DatabaseError, InterfaceError, OperationalError, connections, models, router
from django.forms import Script
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect, QueryDict
from django.http.response import HttpResponseBase
from django.template.loader import render_to_string
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from django.utils import timezone
from django.utils.functional import cached_property
from django.utils.html import format_html_join
from django.utils.log import log_response
from django.utils.safestring import SafeString
from django.utils.text import capfirst
from django.utils.translation import get_language, override
from django.utils.translation import gettext as _
from django.views.decorators.csrf import csrf_exempt, csrf_protect

from django_rmq_retry.admin import broker_look
from django_rmq_retry.admin.app_order import put_in_order
from django_rmq_retry.conf import settings
from django_rmq_retry.database_connections import Unanswered, connect_in_time
from django_rmq_retry.database_errors import away, locked
from django_rmq_retry.health.facts import Unmigrated
from django_rmq_retry.markup import address_of, visible
from django_rmq_retry.models import ParkedMessage, RequeueRun
from django_rmq_retry.parked import approvals, operators
from django_rmq_retry.parked.four_eyes import SecondPersonNeeded
from django_rmq_retry.parked.operators import NEEDED, PERMISSIONS, Actor, Refused
from django_rmq_retry.statements import missing_tables

FOLDER = "admin/rmq_retry"
P = ParamSpec("P")
View = Callable[Concatenate[Any, HttpRequest, P], HttpResponseBase]
"""A method of a page, or a function that takes the page first."""
DATABASE_ANSWER_SECONDS = 6.0
"""Seconds for which a page waits for the first answer of its database."""
AWAY, CLOCK = "Rmq-Away", "Rmq-Clock"
AGAIN_SECONDS = 5
"""Seconds after which a page loads again that had none."""
MOST_RECORDS_LINKED = 50
"""The most messages of an act or a request that are listed one by one."""
MOST_POSTED_BYTES = 10 * 1024 * 1024
"""The size of a form with a list of keys."""


def refusal(request: HttpRequest, *verbs: str, message: object = None, count: int | None = None) -> str:
    """Return the reason that the user may not do all of these, as a sentence; empty if the user may."""
    for verb in verbs:
        if verb == "requeue" and count is not None:
            why = operators.requeue_refusal(request.user, count)
        else:
            why = operators.refusal(request.user, verb, message)
        if why:
            return why
    return ""


def requires(*verbs: str) -> Callable[[View[P]], Callable[Concatenate[Any, HttpRequest, P], HttpResponseBase]]:
    """Answer 403 with the reason if the user lacks one of these permissions."""

    def decorate(view: View[P]) -> View[P]:
        @wraps(view)
        def answered(pages: Any, request: HttpRequest, /, *args: P.args, **kwargs: P.kwargs) -> HttpResponseBase:
            why = refusal(request, *verbs)
            return pages.refused(request, why) if why else view(pages, request, *args, **kwargs)

        return answered

    return decorate


@dataclass(frozen=True, slots=True, kw_only=True)
class Permission:
    """One permission under the name in Django's own pages; ``why`` is the reason that it is missing, else empty."""

    name: str
    why: str


def permissions(request: HttpRequest) -> list[Permission]:
    """Return each permission once, even if two actions need it."""
    known: dict[str, Permission] = {}
    for verb, (codename, name) in PERMISSIONS.items():
        if codename not in known:
            known[codename] = Permission(name=str(name), why=_why_not(request, verb))
    return list(known.values())


def _why_not(request: HttpRequest, verb: str) -> str:
    why = refusal(request, *NEEDED.get(verb, (verb,)))
    if verb in ("edit", "bulk_edit") and not why and not edits():
        return _("This project does not allow messages to be edited (setting EDITABLE).")
    return why


def edits() -> bool:
    """Return True if the project allows some messages to be edited."""
    return True in settings().operators.editable.values()


def saved_as(name: str) -> dict[str, str]:
    """Return the headers of a file that a browser saves and does not display."""
    disposition = f'attachment; filename="{name}"'
    return {"Content-Disposition": disposition, "X-Content-Type-Options": "nosniff", "Cache-Control": "no-store"}


def frame_of(request: HttpRequest) -> dict[str, Any]:
    """Return the context for the frame of every page, including the admin's own lists."""
    known = settings()
    return {
        "rmq_environment": known.operators.environment,
        "rmq_contact": known.operators.contact,
        "rmq_live": request.GET.get("live") != "off",
        # A callable, so that only a template that uses it pays for it: a part of a page does not.
        "rmq_glimpse": broker_look.glimpse,
        "rmq_permissions": partial(permissions, request),
        "rmq_rules_apart": partial(operators.has_own_rules, request.user),
    }


def _clock() -> str:
    """Return what the script says of a part that gets old: in the time zone of all other times of the page."""
    return f"{timezone.localtime():%H:%M:%S}"


def migrated(
    view: Callable[Concatenate[Any, HttpRequest, P], HttpResponseBase],
) -> Callable[Concatenate[Any, HttpRequest, P], Any]:
    """Answer with an explanation if the tables are missing; other database errors are raised as they are."""

    @wraps(view)
    def answered(pages: Any, request: HttpRequest, /, *args: P.args, **kwargs: P.kwargs) -> HttpResponseBase:
        try:
            response = view(pages, request, *args, **kwargs)
            return response.render() if isinstance(response, TemplateResponse) else response
        except OverflowError as error:
            # SQLite refuses a number that no column can hold; other databases find no row.
            raise Http404(str(error)) from error
        except (DatabaseError, Unmigrated) as error:
            if isinstance(error, DatabaseError) and not _tables_are_missing(pages.model):
                raise
            title = _("The database tables are missing")
            missing: HttpResponse = pages.page(request, "unmigrated.html", title=title, status=503)
            return missing

    return answered


def _tables_are_missing(model: type[models.Model]) -> bool:
    # Live status has no table of its own.
    model = model if model._meta.managed else ParkedMessage  # noqa: SLF001 - Django's own API
    connection = connections[router.db_for_read(model)]
    if connection.in_atomic_block and connection.needs_rollback:
        return False
    return bool(missing_tables([model], connection.alias))


def _storable(view: Callable[..., HttpResponseBase]) -> Callable[..., HttpResponseBase]:
    """Return the view with NUL replaced in its parameters: PostgreSQL refuses it, and no stored text has it."""

    @wraps(view)
    def call(request: HttpRequest, *args: object, **options: object) -> HttpResponseBase:
        if "%00" in request.META.get("QUERY_STRING", ""):
            asked = request.GET.copy()
            for name, values in request.GET.lists():
                asked.setlist(name, [value.replace("\0", "\N{REPLACEMENT CHARACTER}") for value in values])
            request.GET = asked  # type: ignore[assignment]  # the stubs want the immutable one
        return view(request, *args, **options)

    return call


def _without_a_database(
    view: Callable[..., HttpResponseBase], *needed: type[models.Model]
) -> Callable[..., HttpResponseBase]:
    """Return the view with a page of its own for a database that is away, which knows no user and asks it nothing.

    One that hangs is noticed by its first answer, before the user is known. What takes long after that is not limited.
    """

    @wraps(view)
    def call(request: HttpRequest, *args: object, **options: object) -> HttpResponseBase:
        try:
            for alias in sorted({router.db_for_read(model) for model in (get_user_model(), *needed)}):
                connect_in_time(alias, DATABASE_ANSWER_SECONDS)
            response = view(request, *args, **options)
            return response.render() if isinstance(response, TemplateResponse) else response
        except (OperationalError, InterfaceError, Unanswered) as error:
            if not (isinstance(error, Unanswered) or away(error) or locked(error)):
                raise
            again = request.method != "POST"
            known = {"request": request, "rmq_environment": settings().operators.environment}
            text = render_to_string(f"{FOLDER}/database_away.html", {**known, "at": timezone.now(), "again": again})
            missing = HttpResponse(text, status=503)
            # By this the script knows that the web server is not what does not answer.
            missing[AWAY] = "database"
            if again:
                # Works without scripts too. After an act its user decides what is done next.
                missing["Refresh"] = str(AGAIN_SECONDS)
            phrase, path = missing.reason_phrase, request.path
            log_response("%s: %s", phrase, path, response=missing, request=request, exception=error)
            return missing

    return call


def _localized(view: Callable[..., HttpResponseBase]) -> Callable[..., HttpResponseBase]:
    """Return the view with language and time zone set while it is made, if they are only the project's default too.

    A page asks for them a thousand times, and Django needs twice as long to find out that none is set.
    """

    @wraps(view)
    def call(request: HttpRequest, *args: object, **options: object) -> HttpResponseBase:
        language = get_language()
        default = language == django_settings.LANGUAGE_CODE
        with override(language, deactivate=default), timezone.override(timezone.get_current_timezone()):
            return view(request, *args, **options)

    return call


def _guard_first_pages(site: admin.AdminSite) -> None:
    """Let the pages of a site with which an operator starts say that the database is away as our pages do.

    They need the users alone: without the records our card is missing.
    """
    asked = site.admin_view
    if isinstance(asked, partial):
        return

    def admin_view(known: Any, view: Any, *args: Any, **kwargs: Any) -> Any:
        guarded = known(view, *args, **kwargs)
        return _without_a_database(guarded) if view in (site.index, site.app_index) else guarded

    site.login = _without_a_database(site.login)  # type: ignore[assignment,method-assign]  # of this site alone
    site.admin_view = partial(admin_view, asked)  # type: ignore[method-assign]  # of this site alone


class Listed(ChangeList):
    """Django's own list; the address of each row takes a fraction of the time."""

    def url_for_result(self, result: models.Model) -> str:
        known: Pages = self.model_admin  # type: ignore[assignment]  # it is in the list of one of ours
        return known.address(f"{self.opts.model_name}_change", result.pk)


class Pages(admin.ModelAdmin):  # type: ignore[type-arg]  # it is generic in the stubs only
    """The base of the admin's pages.

    The admin's own forms add, change and delete nothing; each action has a page of its own.
    """

    sees: str
    """The permission for the list, and for the page of each row."""
    live_list = ""
    """The part of its list that an open page requests again and again, if it does."""
    one_page = False
    """True if the list is the only page of Django's that the model has."""
    show_full_result_count = False
    show_facets = admin.ShowFacets.NEVER
    list_per_page = 50
    list_max_show_all = 200

    class Media:
        css = {"all": ("django_rmq_retry/rmq.css",)}  # noqa: RUF012 - Django's own shape
        js = (Script("django_rmq_retry/rmq.js", defer=True),)

    def __init__(self, model: type[models.Model], admin_site: admin.AdminSite) -> None:
        super().__init__(model, admin_site)
        put_in_order(admin_site)
        _guard_first_pages(admin_site)

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: models.Model | None = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: models.Model | None = None) -> bool:
        return False

    def has_view_permission(self, request: HttpRequest, obj: models.Model | None = None) -> bool:
        return not refusal(request, self.sees)

    @cached_property
    def empty_value_display(self) -> str:
        """What Django shows in an empty cell. It asks for each cell, and takes long where the class does not say it."""
        return str(self.admin_site.empty_value_display)

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ChangeList]:
        return Listed

    @property
    def urls(self) -> list[URLPattern]:
        """The pages, each called with parameters that a database accepts, also while there is none."""
        patterns = self.get_urls()
        for pattern in patterns:
            pattern.callback = _localized(_without_a_database(_storable(pattern.callback), ParkedMessage))
        return patterns

    def get_urls(self) -> list[Any]:
        stock = super().get_urls()
        if self.one_page:
            stock = [url for url in stock if str(url.name).endswith("_changelist")]
        return [*self.own_urls(), *stock]

    def own_urls(self) -> list[URLPattern]:
        """Return the addresses besides Django's."""
        return []

    def own_url(self, route: str, name: str, view: Callable[..., HttpResponseBase]) -> URLPattern:
        """Return an address for the users of this site."""
        return path(route, self.admin_site.admin_view(view), name=f"rmq_retry_{self.opts.model_name}_{name}")

    def button_of_run(self, request: HttpRequest, run: RequeueRun) -> "list[Button]":
        """Return the main button of a page whose messages a run has still to send, if the user may see the run."""
        if refusal(request, "view_run"):
            return []
        label = _("Open requeue run %(number)s") % {"number": run.pk}
        return [Button(label=label, address=self.address("requeuerun_change", run.pk), kind="main")]

    def address(self, name: str, number: object = None) -> str:
        """Return the address of one of our pages on the same admin site, by a name such as `errorgroup_change`."""
        if number is not None:
            return address_of(name, number, self.admin_site.name)
        return reverse(f"admin:rmq_retry_{name}", current_app=self.admin_site.name)

    def linked_records(self, numbers: Iterable[object], between: str = " ") -> SafeString:
        """Return the numbers of messages, each with a link to its page."""
        links = ((self.address("parkedmessage_change", number), number) for number in numbers)
        return format_html_join(between, '<a href="{}">{}</a>', links)

    @migrated
    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> HttpResponseBase:
        why = refusal(request, self.sees)
        return self.refused(request, why) if why else self.list_page(request)

    def list_page(self, request: HttpRequest, **more: Any) -> HttpResponseBase:
        """Show the list, by default Django's own in our frame; only its part if the script requests the part."""
        context = {"title": capfirst(self.opts.verbose_name_plural), **frame_of(request), **more}
        asked = request.GET.copy()
        # Django would take it for a filter.
        fragment = asked.pop("fragment", None)
        request.GET = asked  # type: ignore[assignment]  # the stubs want the immutable one
        shown = super().changelist_view(request, context)
        if self.live_list and isinstance(shown, TemplateResponse):
            shown.template_name = f"{FOLDER}/{self.live_list}" if fragment else shown.template_name
            shown[CLOCK] = _clock()
        return shown

    @migrated
    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: Any = None
    ) -> HttpResponseBase:
        why = refusal(request, self.sees)
        return self.refused(request, why) if why else self.row_page(request, object_id)

    def row_page(self, request: HttpRequest, object_id: str) -> HttpResponseBase:
        """Show one row, by default on Django's own page."""
        return super().change_view(request, object_id)

    def page(
        self, request: HttpRequest, template: str, *, title: str, status: int = 200, **context: Any
    ) -> TemplateResponse:
        """Show a page in the site's frame; only its part if the script requests the part."""
        part = context.pop("part", "")
        request.current_app = self.admin_site.name
        frame = {
            **self.admin_site.each_context(request),
            "opts": self.opts,
            "title": visible(str(title)),
            "part": part and f"{FOLDER}/{part}",
            "media": self.media,
            **frame_of(request),
            **context,
        }
        shown = part if part and request.GET.get("fragment") else template
        answer = TemplateResponse(request, f"{FOLDER}/{shown}", frame, status=status)
        answer[CLOCK] = _clock()
        return answer

    def roomy(self, view: Callable[..., HttpResponseBase]) -> Callable[..., HttpResponseBase]:
        """Wrap a view whose form may exceed DATA_UPLOAD_MAX_MEMORY_SIZE, up to MOST_POSTED_BYTES.

        The user is signed in already. The form is read before its CSRF token can be; then the token is checked.
        """
        guarded = csrf_protect(view)

        @csrf_exempt
        def read(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
            try:
                request.POST  # noqa: B018 - reading it is what fails
            except RequestDataTooBig:
                if request.content_type != "application/x-www-form-urlencoded":
                    raise
                if int(request.META.get("CONTENT_LENGTH") or 0) > MOST_POSTED_BYTES:
                    why = _("The form is larger than %(size)d MB. Nothing was done. Go back: your text is still there.")
                    return self.refused(request, why % {"size": MOST_POSTED_BYTES // 1024**2}, status=413)
                request.POST = QueryDict(request.read(MOST_POSTED_BYTES), encoding=request.encoding)
            return guarded(request, *args, **kwargs)

        return read

    def ask(self, request: HttpRequest, needed: SecondPersonNeeded) -> HttpResponseRedirect:
        """Ask a second person for the act, and lead to the request."""
        try:
            asked = approvals.ask(needed.wish, Actor.of_request(request))
        except Refused as refused:
            messages.warning(request, str(refused))
            return HttpResponseRedirect(self.address("parkedmessage_changelist"))
        text = _("Nothing was done yet. %(request)s waits for a second person.") % {"request": asked}
        messages.info(request, text)
        if refusal(request, "view_request"):
            return HttpResponseRedirect(self.address("parkedmessage_changelist"))
        return HttpResponseRedirect(self.address("approvalrequest_change", asked.pk))

    def refused(self, request: HttpRequest, why: str, *, status: int = 403) -> TemplateResponse:
        """Return 403 with the sentence that names the missing permission and the contact."""
        return self.page(request, "not_allowed.html", title=_("This is not allowed"), status=status, why=why)


@dataclass(frozen=True, slots=True, kw_only=True)
class Button:
    """A button that leads to a page or posts to an address; disabled if ``why`` has a reason."""

    label: str
    address: str
    why: str = ""
    post: bool = False
    values: tuple[tuple[str, str], ...] = ()
    kind: str = ""
    """`main` for the most common action, `danger` for a destructive one."""
    describes: str = ""
    """The object of the action, for users of a screen reader."""
