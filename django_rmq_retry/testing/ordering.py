"""Order within a key in a test: as in production, if there are handlers that ask for it."""

from collections.abc import Callable, Sequence

from django.utils.module_loading import import_string

from django_rmq_retry.core.subscription import Intake
from django_rmq_retry.runtime.gating import Gate

ORDER = "django_rmq_retry.ordering.gating.Order"
"""By its name: pytest loads the kit before a project has its settings, and models ask for them."""


def orders(intakes: Sequence[Intake]) -> Sequence[Gate]:
    """The gate of those handlers, or none."""
    if not any(intake.keyed for intake in intakes):
        return ()
    made: Callable[[], Gate] = import_string(ORDER)
    return (made(),)
