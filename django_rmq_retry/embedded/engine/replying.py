"""Direct reply-to: the name that a broker puts into reply_to so that an answer finds its channel without a queue."""

from dataclasses import replace

from django_rmq_retry.core.properties import encode_properties
from django_rmq_retry.embedded.engine.messages import decoded


def with_reply_to(raw: bytes, name: str) -> bytes:
    return encode_properties(replace(decoded(raw), reply_to=name))
