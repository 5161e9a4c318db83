"""How a check says what it found, and what all checks begin with."""

from collections.abc import Callable, Iterable, Sequence

from django.core.checks import CheckMessage, Error, Warning  # noqa: A004  # Django's own name
from django.core.exceptions import ImproperlyConfigured

from django_rmq_retry import conf, registry
from django_rmq_retry.conf import Settings
from django_rmq_retry.core.errors import ConfigurationError

TAG = "rmq_retry"
Check = Callable[..., list[CheckMessage]]


def error(number: str, text: str, *, hint: str, at: str | None = None) -> CheckMessage:
    return Error(text, hint=hint, obj=at, id=f"{TAG}.{number}")


def warning(number: str, text: str, *, hint: str, at: str | None = None) -> CheckMessage:
    return Warning(text, hint=hint, obj=at, id=f"{TAG}.{number}")


def with_settings(check: Callable[[Settings], Iterable[CheckMessage]]) -> Check:
    """A check that has nothing to say while the settings or the handlers are broken: another check says that."""

    def run(*, app_configs: Sequence[object] | None, **_: object) -> list[CheckMessage]:  # noqa: ARG001  # Django's call
        try:
            return list(check(conf.settings()))
        except (ImproperlyConfigured, ConfigurationError):
            return []

    return run


def joined() -> list[str]:
    """The names of the handlers that can be joined with their queues."""
    return [name for name in registry.registrations() if not problem(name)]


def problem(name: str) -> str:
    """Why a handler cannot be joined with its queue and policy; empty where it can."""
    try:
        registry.subscription(name)
    except ConfigurationError as wrong:
        return str(wrong)
    return ""
