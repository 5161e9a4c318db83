"""Consume, retry and park RabbitMQ messages in Django."""

__version__ = "0.1.0"
