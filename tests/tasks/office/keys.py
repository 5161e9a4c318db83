"""The business keys of the tasks, which the settings name."""

from django_rmq_retry import Delivery


def addressee(message: Delivery) -> list[str]:
    return [one for one in message.data["args"] if isinstance(one, str)]
