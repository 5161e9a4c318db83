"""Direct reply-to: the name that a broker puts into reply_to so that an answer finds its channel without a queue."""

from dataclasses import replace

from django_rmq_retry.core.properties import encode_properties
from django_rmq_retry.embedded.engine.messages import decoded

_MADE_HERE = "amq.rabbitmq.reply-to.embedded."


def reply_name(chance: str) -> str:
    return _MADE_HERE + chance


def is_reply_name(key: str) -> bool:
    """A broker of this kind has made it, whether or not somebody still waits there."""
    return key.startswith(_MADE_HERE)


def with_reply_to(raw: bytes, name: str) -> bytes:
    return encode_properties(replace(decoded(raw), reply_to=name))
