"""Finds the tasks of all apps, and registers the handlers of their queues; nothing of it is loaded without them."""

import sys
from collections.abc import Iterator, Mapping
from typing import Any

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.core.signals import setting_changed
from django.utils.module_loading import autodiscover_modules, import_string

from django_rmq_retry.conf import NAME
from django_rmq_retry.errors import ConfigurationError
from django_rmq_retry.handlers import registry

OURS = "django_rmq_retry."
SETTING = "TASKS"
_registered: set[str] = set()
"""The names of the handlers that were registered here."""


def discover() -> None:
    """Import each app's ``tasks.py`` if a backend of ``TASKS`` is ours, and register a handler for each queue."""
    if list(_backends()):
        autodiscover_modules("tasks")
    register()


def register() -> None:
    """Register the handlers of today's settings in place of those before; a wrong setting is left to the checks."""
    registry.unregister(_registered)
    _registered.clear()
    for alias, backend, params in _backends():
        from django_rmq_retry.tasks import queues  # noqa: PLC0415 - needs Django's tasks, which a project may not have

        try:
            found = list(queues.registrations(alias, backend, params))
        except (ImproperlyConfigured, ConfigurationError):
            continue
        for registration in found:
            if registration.name not in _registered:
                registry.register(registration)
                _registered.add(registration.name)


def _backends() -> Iterator[tuple[str, object, Mapping[str, Any]]]:
    """Yield alias, class and parameters of the backends that may be ours."""
    tasks: Mapping[str, Any] = getattr(settings, SETTING, {})
    for alias, params in tasks.items():
        path = str(params.get("BACKEND", ""))
        try:
            backend = import_string(path)
        except ImportError:
            # Django reports the backend of another package; without Django's tasks ours must not be ignored silently.
            if path.startswith(OURS):
                raise
            continue
        # The import of a subclass of ours has loaded its module.
        if f"{OURS}tasks.backend" in sys.modules:
            yield alias, backend, params


def _setting_changed(*, setting: str, **_: object) -> None:
    if setting in (SETTING, NAME):
        register()


setting_changed.connect(_setting_changed, dispatch_uid="django_rmq_retry.tasks.discovery")
