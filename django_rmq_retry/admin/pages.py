"""The base of all pages: buttons, permissions, help and pagination."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial, update_wrapper, wraps
from typing import Any, Concatenate, ParamSpec
from urllib.parse import urlencode

from django.contrib import admin
from django.core.exceptions import RequestDataTooBig
from django.db import DatabaseError, connections, models, router
from django.db.models import BigIntegerField
from django.forms import Script
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect, QueryDict
from django.http.response import HttpResponseBase
from django.template.response import TemplateResponse
from django.urls import URLPattern, reverse
from django.utils.translation import gettext as _
from django.views.decorators.csrf import csrf_exempt, csrf_protect

from django_rmq_retry.admin import broker_look
from django_rmq_retry.conf import settings
from django_rmq_retry.models import ParkedMessage, State
from django_rmq_retry.parked import operators
from django_rmq_retry.parked.findings import Finding
from django_rmq_retry.parked.operators import PERMISSIONS
from django_rmq_retry.parked.selection import EXCEPT, Selection
from django_rmq_retry.templatetags.rmq_retry import visible

NEEDED = {"bulk_requeue": ("requeue", "bulk_requeue"), "edit": ("edit", "view_payload", "requeue")}
"""Actions that need more than one permission."""

FOLDER = "admin/rmq_retry"
P = ParamSpec("P")
MOST_POSTED = 10 * 1024 * 1024
"""The most bytes of a form with a list of keys."""

MOST_ASKED = 2000
"""The most messages of a filter for which the project's rules are called before the request is sent."""
CARRIED = ("canary", "held")
"""Query parameters that are kept besides the selection."""


def refusal(request: HttpRequest, verb: str, message: object = None, *, count: int | None = None) -> str:
    """Return an empty string if the user may do this, else a sentence with the reason."""
    if verb == "requeue" and count is not None:
        return operators.requeue_refusal(request.user, count)
    return operators.refusal(request.user, verb, message)


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


def rules_apart(request: HttpRequest) -> bool:
    """Return True if the project's rules may forbid on single messages what the user's permissions allow."""
    return settings().operators.permit is not None and not getattr(request.user, "is_superuser", False)


def _why_not(request: HttpRequest, verb: str) -> str:
    why = next((why for one in NEEDED.get(verb, (verb,)) if (why := refusal(request, one))), "")
    if verb == "edit" and not why and True not in settings().operators.editable.values():
        return _("This project does not allow messages to be edited (setting EDITABLE).")
    return why


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


class Pages(admin.ModelAdmin):  # type: ignore[type-arg]  # it is generic in the stubs only
    """The base of the admin's pages.

    The admin's own forms add, change and delete nothing; each action has a page of its own.
    """

    show_full_result_count = False
    show_facets = admin.ShowFacets.NEVER
    list_per_page = 50
    list_max_show_all = 200

    class Media:
        css = {"all": ("django_rmq_retry/rmq.css",)}  # noqa: RUF012 - Django's own shape
        js = (Script("django_rmq_retry/rmq.js", defer=True),)

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: models.Model | None = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: models.Model | None = None) -> bool:
        return False

    @property
    def urls(self) -> list[URLPattern]:
        """The pages, each called with parameters that a database accepts."""
        patterns = self.get_urls()
        for pattern in patterns:
            pattern.callback = _storable(pattern.callback)
        return patterns

    def address(self, name: str, *args: object) -> str:
        """Return the address of one of our pages on the same admin site, by a name such as `errorgroup_change`."""
        return reverse(f"admin:rmq_retry_{name}", args=args, current_app=self.admin_site.name)

    def page(
        self, request: HttpRequest, template: str, *, title: str, status: int = 200, **context: Any
    ) -> TemplateResponse:
        """Show a page in the site's frame; only its part if the script requests the part."""
        part = context.get("part")
        if part and request.GET.get("fragment"):
            template = part
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
        frame["part"] = part and f"{FOLDER}/{part}"
        return TemplateResponse(request, f"{FOLDER}/{template}", frame, status=status)

    def roomy(self, view: Callable[..., HttpResponseBase]) -> Callable[..., HttpResponseBase]:
        """Wrap a view whose form may exceed DATA_UPLOAD_MAX_MEMORY_SIZE; a form above MOST_POSTED gets a 413 page.

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
                if int(request.META.get("CONTENT_LENGTH") or 0) > MOST_POSTED:
                    why = _("The form is larger than %(size)d MB. Nothing was done. Go back: your text is still there.")
                    return self.refused(request, why % {"size": MOST_POSTED // 1024**2}, status=413)
                request.POST = QueryDict(request.read(MOST_POSTED), encoding=request.encoding)
            return guarded(request, *args, **kwargs)

        return read

    def refused(self, request: HttpRequest, why: str, *, status: int = 403) -> TemplateResponse:
        """Return 403 with the sentence that names the missing permission and the contact."""
        return self.page(request, "not_allowed.html", title=_("This is not allowed"), status=status, why=why)


def frame_of(request: HttpRequest) -> dict[str, Any]:
    """Return the context for the frame of every page, including the admin's own lists."""
    known = settings()
    return {
        "rmq_environment": known.operators.environment,
        "rmq_contact": known.operators.contact,
        "rmq_live": request.GET.get("live") != "off",
        # A callable, so that only a template that uses it pays for it: a part of a page does not.
        "rmq_glimpse": lambda: broker_look.glimpse(),  # noqa: PLW0108 - tests replace broker_look.glimpse
        "rmq_permissions": partial(permissions, request),
        "rmq_rules_apart": partial(rules_apart, request),
    }


def migrated(
    view: Callable[Concatenate[Any, HttpRequest, P], HttpResponse],
) -> Callable[Concatenate[Any, HttpRequest, P], HttpResponse]:
    """Answer with an explanation if the tables are missing; other database errors are raised as they are."""

    def answered(self: Any, request: HttpRequest, /, *args: P.args, **kwargs: P.kwargs) -> HttpResponse:
        try:
            response = view(self, request, *args, **kwargs)
            return response.render() if isinstance(response, TemplateResponse) else response
        except OverflowError as error:
            # SQLite refuses a number that no column can hold; other databases find no row.
            raise Http404(str(error)) from error
        except DatabaseError:
            if not _tables_are_missing(self.model):
                raise
            missing: HttpResponse = self.page(
                request, "unmigrated.html", title=_("The database tables are missing"), status=503
            )
            return missing

    update_wrapper(answered, view)
    return answered


def _tables_are_missing(model: type[models.Model]) -> bool:
    connection = connections[router.db_for_read(model)]
    if connection.in_atomic_block and connection.needs_rollback:
        return False
    return model._meta.db_table not in connection.introspection.table_names()  # noqa: SLF001 - Django's own API


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


def frozen(request: HttpRequest) -> HttpResponseRedirect | None:
    """Redirect to the same page with a signed selection if the address names a group, a message or a requeue run."""
    if request.method != "GET" or request.GET.get("sel"):
        return None
    selection = _named(request)
    if selection is None:
        return None
    words = {"sel": selection.token(), **{name: request.GET[name] for name in CARRIED if name in request.GET}}
    return HttpResponseRedirect(f"{request.path}?{urlencode(words)}")


def chosen(request: HttpRequest) -> Selection:
    """Return the page's selection; raise Outdated if its token has expired or is not signed by this site."""
    return Selection.read(request.POST.get("sel") or request.GET.get("sel") or "")


def counted(selection: Selection) -> int:
    """Return the number of messages now.

    Raise Refused if the selection has grown or is empty, unless all of its messages were left out.
    """
    count = selection.queryset().count()
    if count or EXCEPT not in selection.filter:
        selection.check(count)
    return count


def again(request: HttpRequest, selection: Selection) -> str:
    """Return the address that freezes the same selection again."""
    words: dict[str, Any] = {"sel": _anew(selection).token()}
    words |= {name: request.GET[name] for name in CARRIED if name in request.GET}
    return f"{request.path}?{urlencode(words)}"


def forbidden(request: HttpRequest, verb: str, selection: Selection) -> str:
    """Return the reason that the user may not do this; the project's rules are called for messages chosen by id."""
    count = selection.count if verb == "requeue" else None
    why = refusal(request, verb, count=count)
    if why or not selection.revisions:
        return why
    for message in selection.queryset().defer("body", "properties"):
        why = refusal(request, verb, message)
        if why:
            return named(request, message, why)
    return ""


def kept_back(request: HttpRequest, verb: str, selection: Selection) -> list[int]:
    """Return the messages of a filter that the project's rules withhold, as checked for the oldest `MOST_ASKED`."""
    if selection.named or not operators.has_own_rules(request.user):
        return []
    rows = selection.queryset().defer("body", "properties").order_by("parked_at", "pk")[:MOST_ASKED]
    return [row.pk for row in rows.iterator(chunk_size=500) if refusal(request, verb, row)]


def named(request: HttpRequest, message: ParkedMessage, why: str) -> str:
    """Return the reason with the message's name, or only its id if the user may not see it."""
    name = f"#{message.pk}" if refusal(request, "view", message) else str(message)
    return f"{name}: {why}"


def seen(request: HttpRequest, finding: Finding) -> Finding:
    """Return the finding with only those examples that the user may see."""
    if settings().operators.permit is None and not refusal(request, "view"):
        return finding
    rows = ParkedMessage.objects.filter(pk__in=[pk for pk, _name in finding.examples]).defer("body", "properties")
    known = {row.pk for row in rows if not refusal(request, "view", row)}
    return replace(finding, examples=tuple(one for one in finding.examples if one[0] in known))


def sample(request: HttpRequest, selection: Selection, count: int = 10) -> list[ParkedMessage]:
    """Return the oldest messages, without those that the user may not see."""
    rows = selection.queryset().defer("body", "properties").order_by("parked_at", "pk")[:count]
    return [row for row in rows if not refusal(request, "view", row)]


def _named(request: HttpRequest) -> Selection | None:
    group, message, run = (_number(request.GET.get(name, "")) for name in ("group", "message", "failed_of_run"))
    if group is not None:
        return Selection.of_filter({"group": group, "state": [State.PARKED]})
    if message is not None:
        return Selection.of_ids([message])
    if run is not None:
        return Selection.of_filter({"failed_of_run": run, "state": [State.PARKED]})
    return None


def _number(text: str) -> int | None:
    """Return the number if a column can hold it: SQLite refuses to search for larger ones."""
    return int(text) if text.isdecimal() and int(text[:30]) <= BigIntegerField.MAX_BIGINT else None


def _anew(selection: Selection) -> Selection:
    if not selection.named:
        return Selection.of_filter(selection.filter)
    return Selection.of_ids(selection.revisions).leaving_out(selection.filter.get(EXCEPT))
