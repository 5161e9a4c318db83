"""The test kit: runs handlers with all their retries in the test's own process, on a virtual clock, without a broker.

With pytest request the fixture ``rmq``; elsewhere write ``with RmqTest() as rmq`` or inherit from ``RmqTestMixin``.
"""

from django_rmq_retry.testing.driver import NeverQuiet
from django_rmq_retry.testing.kit import RmqTest, RmqTestMixin
from django_rmq_retry.testing.views import Parked, Tried, assert_topology, message_of
from django_rmq_retry.testing.virtual import Fault

__all__ = ["Fault", "NeverQuiet", "Parked", "RmqTest", "RmqTestMixin", "Tried", "assert_topology", "message_of"]
