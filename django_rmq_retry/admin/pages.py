"""What all pages of the app share: who may see them, their frame, their parts for the script, their empty states."""

from collections.abc import Callable
from functools import partial, update_wrapper
from typing import Any, Concatenate, ParamSpec

from django.contrib import admin
from django.db import DatabaseError, connections, models, router
from django.forms import Script
from django.http import Http404, HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils.translation import gettext as _

from django_rmq_retry.admin import helping, looking
from django_rmq_retry.conf import settings
from django_rmq_retry.templatetags.rmq_retry import visible

FOLDER = "admin/rmq_retry"
P = ParamSpec("P")


class Pages(admin.ModelAdmin):  # type: ignore[type-arg]  # it is generic in the stubs only
    """Nothing is added, changed or deleted by the admin's own forms; a page shows, an act has a page of its own."""

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

    def address(self, name: str, *args: object) -> str:
        """The address of one of our pages on this very site, such as `errorgroup_change`."""
        return reverse(f"admin:rmq_retry_{name}", args=args, current_app=self.admin_site.name)

    def page(
        self, request: HttpRequest, template: str, *, title: str, status: int = 200, **context: Any
    ) -> TemplateResponse:
        """A page in the frame of the site; only its part where the script asks for that."""
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

    def refused(self, request: HttpRequest, why: str) -> TemplateResponse:
        """403, with the sentence that says what is missing and whom to ask."""
        return self.page(request, "refused.html", title=_("This is not allowed"), status=403, why=why)


def frame_of(request: HttpRequest) -> dict[str, Any]:
    """What the frame of every page of ours shows, the admin's own lists among them."""
    known = settings()
    return {
        "rmq_environment": known.environment,
        "rmq_contact": known.contact,
        "rmq_live": request.GET.get("live") != "off",
        # The template asks: a part of a page has no use for it.
        "rmq_glimpse": lambda: looking.glimpse(),  # noqa: PLW0108 - tests put another one in its place
        "rmq_permissions": partial(helping.permissions, request),
        "rmq_rules_apart": partial(helping.rules_apart, request),
    }


def migrated(
    view: Callable[Concatenate[Any, HttpRequest, P], HttpResponse],
) -> Callable[Concatenate[Any, HttpRequest, P], HttpResponse]:
    """Answer with a sentence where the tables are missing; every other trouble of the database stays what it is."""

    def answered(self: Any, request: HttpRequest, /, *args: P.args, **kwargs: P.kwargs) -> HttpResponse:
        try:
            response = view(self, request, *args, **kwargs)
            return response.render() if isinstance(response, TemplateResponse) else response
        except OverflowError as error:
            # SQLite refuses to look for a number that no column holds; the others find nothing.
            raise Http404(str(error)) from error
        except DatabaseError:
            if not _tables_are_missing(self.model):
                raise
            missing: HttpResponse = self.page(request, "unmigrated.html", title=_("The tables are missing"), status=503)
            return missing

    update_wrapper(answered, view)
    return answered


def _tables_are_missing(model: type[models.Model]) -> bool:
    connection = connections[router.db_for_read(model)]
    if connection.in_atomic_block and connection.needs_rollback:
        return False
    return model._meta.db_table not in connection.introspection.table_names()  # noqa: SLF001 - Django's own API
