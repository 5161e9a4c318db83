"""What is recorded by itself because somebody looked: a hidden field that was shown, bytes that were taken away."""

from django.db import router, transaction
from django.http import HttpRequest, HttpResponse, HttpResponseNotFound

from django_rmq_retry.admin import allowing, detail
from django_rmq_retry.admin.heading import PLACE
from django_rmq_retry.admin.pages import Pages
from django_rmq_retry.conf import settings
from django_rmq_retry.core.errors import UndecodableHeaders
from django_rmq_retry.core.masking import hides, masked
from django_rmq_retry.core.properties import decode_properties
from django_rmq_retry.models import OperatorAction, ParkedMessage, Verb
from django_rmq_retry.operating.actors import Actor
from django_rmq_retry.operating.auditing import note
from django_rmq_retry.operating.sending import contents


def reveal(pages: Pages, request: HttpRequest, pk: int) -> HttpResponse:
    """Show the page once more with one hidden value, after that was written down."""
    message = detail.found_or_404(str(pk))
    why = allowing.refusal(request, "view", message) or allowing.refusal(request, "reveal", message)
    if why:
        return pages.refused(request, why)
    place = request.POST.get("place", "")
    if place not in _hidden(message):
        return HttpResponseNotFound()
    with transaction.atomic(using=router.db_for_write(OperatorAction)):
        _note(request, message, Verb.REVEAL, {"place": place})
    return detail.view(pages, request, str(pk), shown=(place,))


def download(pages: Pages, request: HttpRequest, pk: int) -> HttpResponse:
    """The exact bytes of the body, or of an older version of it, to be saved and not to be shown."""
    message = detail.found_or_404(str(pk))
    why = allowing.refusal(request, "view", message) or allowing.refusal(request, "view_payload", message)
    if why:
        return pages.refused(request, why)
    number = 1 if request.POST.get("version") == "1" else message.version
    body = bytes(message.body) if number == 1 else contents(message).body
    with transaction.atomic(using=router.db_for_write(OperatorAction)):
        _note(request, message, Verb.DOWNLOAD, {"version": number, "sha256": message.sha256, "bytes": len(body)})
    return HttpResponse(
        body,
        content_type="application/octet-stream",
        headers={
            "Content-Disposition": f'attachment; filename="message-{message.pk}-v{number}.bin"',
            "X-Content-Type-Options": "nosniff",
            "Cache-Control": "no-store",
        },
    )


def _hidden(message: ParkedMessage) -> set[str]:
    """The places that are hidden from whoever may not see the whole message."""
    paths = settings().mask
    now = contents(message)
    places = {
        place for body in (now.body, bytes(message.body)) for place in masked(body, message.content_type, paths)[1]
    }
    for raw in (now.raw, bytes(message.properties)):
        try:
            names = list(decode_properties(raw).headers)
        except UndecodableHeaders:
            continue
        places |= {PLACE + name for name in names if hides([name], paths)}
    return places


def _note(request: HttpRequest, message: ParkedMessage, verb: Verb, facts: dict[str, object]) -> None:
    actor = Actor.of_request(request)
    note(actor, verb, message=message.pk, group=message.group_id, subject=str(message), facts=facts)
