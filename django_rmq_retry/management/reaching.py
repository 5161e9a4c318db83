"""How the commands reach the broker."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from django_rmq_retry.broker.asking import PATIENCE, Session
from django_rmq_retry.broker.declaring import Declarer
from django_rmq_retry.broker.inspecting import Inspector
from django_rmq_retry.conf import settings

PATIENCE_OF_API = 5.0


@contextmanager
def declarer(*, timeout: float | None = None) -> Iterator[Declarer]:
    """A Declarer on a session of its own; with a time-out for each step, where it is for a probe."""
    access = settings().access()
    if timeout is not None:
        access = replace(access, connect_timeout=timeout)
    with Session(access, purpose="command", patience=timeout or PATIENCE) as session:
        yield Declarer(session, inspector(timeout=timeout))


def inspector(*, timeout: float | None = None) -> Inspector | None:
    """The management API, where RMQ_RETRY["MANAGEMENT_URL"] names one."""
    url = settings().management_url
    if url is None:
        return None
    return Inspector(url=url, vhost=settings().access().vhost, timeout=timeout or PATIENCE_OF_API)
