"""The Django app."""

from django.apps import AppConfig
from django.utils.translation import gettext_lazy as _

from django_rmq_retry import checks
from django_rmq_retry.handlers import registry
from django_rmq_retry.tasks import discovery

__all__ = ["RmqRetryConfig", "checks"]


class RmqRetryConfig(AppConfig):
    """Consume, retry and park RabbitMQ messages."""

    name = "django_rmq_retry"
    label = "rmq_retry"
    verbose_name = _("Message processing")
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Find the handlers and tasks; no connection is opened."""
        registry.autodiscover()
        discovery.discover()
