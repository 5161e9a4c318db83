"""The pytest plugin: registers the ``rmq`` fixture."""

from collections.abc import Iterator

import pytest

from django_rmq_retry.testing.kit import RmqTest

MARKER = "rmq(seed=None, version='4.0', url=None, patience=60): arguments of the fixture rmq"


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", MARKER)


@pytest.fixture
def rmq(request: pytest.FixtureRequest) -> Iterator[RmqTest]:
    """Run the project's handlers on a broker of this test, with a virtual clock."""
    marker = request.node.get_closest_marker("rmq")
    with RmqTest(**(marker.kwargs if marker else {})) as kit:
        yield kit
