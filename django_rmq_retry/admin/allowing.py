"""What the person at the page may do, as the operating functions will judge it too."""

from django.http import HttpRequest

from django_rmq_retry.operating import permitting


def refusal(request: HttpRequest, verb: str, message: object = None, *, count: int | None = None) -> str:
    """Nothing if it is allowed, else the sentence why not."""
    if verb == "requeue" and count is not None:
        return permitting.requeue_refusal(request.user, count)
    return permitting.refusal(request.user, verb, message)
