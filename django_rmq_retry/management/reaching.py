"""How the commands reach the broker."""

from collections.abc import Iterator
from contextlib import contextmanager

from django_rmq_retry.broker.asking import Session
from django_rmq_retry.broker.declaring import Declarer
from django_rmq_retry.broker.inspecting import Inspector
from django_rmq_retry.conf import settings


@contextmanager
def declarer(*, patience: float = 30.0) -> Iterator[Declarer]:
    """A Declarer on a session of its own."""
    with Session(settings().access(), purpose="command", patience=patience) as session:
        yield Declarer(session, inspector())


def inspector() -> Inspector | None:
    """The management API, where RMQ_RETRY["MANAGEMENT_URL"] names one."""
    url = settings().management_url
    return None if url is None else Inspector(url=url, vhost=settings().access().vhost)
