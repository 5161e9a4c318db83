"""The test kit: runs handlers with all their retries in the test's own process, on a virtual clock, without a broker.

With pytest request the fixture ``rmq``; elsewhere write ``with RmqTest() as rmq`` or inherit from ``RmqTestMixin``.
"""

from django_rmq_retry.handlers.registry import isolated as isolated_handlers
from django_rmq_retry.testing.driver import Tried
from django_rmq_retry.testing.faults import Fault, NeverQuiet
from django_rmq_retry.testing.kit import Parked, RmqTest, RmqTestMixin, assert_topology, message_of

__all__ = [
    "Fault",
    "NeverQuiet",
    "Parked",
    "RmqTest",
    "RmqTestMixin",
    "Tried",
    "assert_topology",
    "isolated_handlers",
    "message_of",
]
