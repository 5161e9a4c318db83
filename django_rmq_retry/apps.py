"""What Django knows of the app."""

from django.apps import AppConfig

from django_rmq_retry import checks, registry

__all__ = ["RmqRetryConfig", "checks"]


class RmqRetryConfig(AppConfig):
    """Consume, retry and park RabbitMQ messages."""

    name = "django_rmq_retry"
    label = "rmq_retry"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Find the handlers; nothing is connected to."""
        registry.autodiscover()
