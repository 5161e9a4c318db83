"""What people write about a cause: a note for the next one, its owner, its ticket, what it means in plain words."""

from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.translation import gettext as _

from django_rmq_retry.admin import allowing
from django_rmq_retry.admin.pages import Pages
from django_rmq_retry.models import ErrorGroup
from django_rmq_retry.operating.actors import Actor
from django_rmq_retry.operating.noting import LIMITS, annotate, mute
from django_rmq_retry.operating.refusals import Refused


def view(pages: Pages, request: HttpRequest, pk: int) -> HttpResponse:
    """The form, and storing it."""
    why = allowing.refusal(request, "view_group") or allowing.refusal(request, "note")
    if why:
        return pages.refused(request, why)
    group = ErrorGroup.objects.filter(pk=pk).first()
    if group is None:
        raise Http404(_("There is no such error group."))
    if request.method == "POST":
        texts = {name: request.POST[name].strip() for name in LIMITS if name in request.POST}
        muted = bool(request.POST.get("muted"))
        try:
            annotate(pk, Actor.of_request(request), **texts)
            if muted != group.muted:
                mute(pk, Actor.of_request(request), muted=muted)
        except Refused as refusal:
            messages.warning(request, str(refusal))
        else:
            messages.success(request, _("The note is stored."))
        return HttpResponseRedirect(pages.address("errorgroup_change", pk))
    return pages.page(request, "errorgroup/note.html", title=_("Note"), group=group)
