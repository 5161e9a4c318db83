"""What Django knows of the app."""

from importlib import import_module

from django.apps import AppConfig
from django.utils.translation import gettext_lazy as _

from django_rmq_retry import checks
from django_rmq_retry.handlers import registry
from django_rmq_retry.publishing import broker_connections

__all__ = ["RmqRetryConfig", "checks"]


class RmqRetryConfig(AppConfig):
    """Consume, retry and park RabbitMQ messages."""

    name = "django_rmq_retry"
    label = "rmq_retry"
    verbose_name = _("Message processing")
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Find the handlers; nothing is connected to."""
        # Models can be imported only now.
        broker_connections.use_outbox(import_module("django_rmq_retry.publishing.outbox").Outbox())
        registry.autodiscover()
