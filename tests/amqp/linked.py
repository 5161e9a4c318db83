"""A link on its own thread, and its reports."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django_rmq_retry.amqp import Access
from django_rmq_retry.amqp.link import Link
from tests.amqp.live import io_thread
from tests.tooling.node import free_ports
from tests.tooling.waiting import wait_until


class Reports:
    """The reports of a link, and the link itself."""

    def __init__(self) -> None:
        self.opened: list[Any] = []
        self.lost: list[tuple[str, float]] = []
        self.refused: list[BaseException] = []
        self.closed: list[bool] = []
        self.link: Link


@contextmanager
def linked(url: str | list[str] | Any, *, opening: bool = True, **options: Any) -> Iterator[Reports]:
    """A link on its own thread, closed in the end."""
    told = Reports()
    with io_thread() as io:
        told.link = Link(
            io,
            Access.parse(url, **options),
            purpose="test",
            opened=told.opened.append,
            lost=lambda reason, wait: told.lost.append((reason, wait)),
            refused=told.refused.append,
        )
        if opening:
            io.call(told.link.open)
        yield told

        assert io.alive
        closed: list[bool] = []
        io.call(lambda: told.link.close(lambda: closed.append(True)))
        wait_until(lambda: closed, 5, what="the link is closed")


def gone() -> str:
    (port,) = free_ports(1)
    return f"amqp://guest:guest@127.0.0.1:{port}/%2F"
