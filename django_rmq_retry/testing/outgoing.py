"""What commits have left in the outbox: the kit sends it when it drains, as a relay would after a while."""

from collections.abc import Callable

from django.utils.module_loading import import_string

SEND_LEFT = "django_rmq_retry.outbox.flushing.send_left"
"""By its name: pytest loads the kit before a project has its settings, and models ask for them."""


def send_left() -> int:
    """Send it all; return how many were sent."""
    send: Callable[[], int] = import_string(SEND_LEFT)
    return send()
