"""The backend for Django's tasks.

Its names are imported on first use: other packages, such as Celery, import a module ``tasks`` of each installed app,
also in a project that has no tasks of Django.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from django_rmq_retry.tasks.backend import RabbitBackend
    from django_rmq_retry.tasks.policies import policy

__all__ = ["RabbitBackend", "policy"]


def __getattr__(name: str) -> object:
    if name == "RabbitBackend":
        from django_rmq_retry.tasks.backend import RabbitBackend  # noqa: PLC0415 - see above

        return RabbitBackend
    if name == "policy":
        from django_rmq_retry.tasks.policies import policy  # noqa: PLC0415 - see above

        return policy
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
