"""What Django knows of the app."""

from django.apps import AppConfig


class RmqRetryConfig(AppConfig):
    """Consume, retry and park RabbitMQ messages."""

    name = "django_rmq_retry"
    label = "rmq_retry"
    default_auto_field = "django.db.models.BigAutoField"
