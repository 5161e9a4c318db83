"""The test kit: handlers with all their retries in the test's own process, on a virtual clock, without a broker.

With pytest ask for the fixture ``rmq``; elsewhere write ``with RmqTest() as rmq`` or inherit from ``RmqTestMixin``.
"""

from django_rmq_retry.testing.cases import RmqTestMixin
from django_rmq_retry.testing.driving import NeverQuiet
from django_rmq_retry.testing.faults import Fault
from django_rmq_retry.testing.kit import RmqTest
from django_rmq_retry.testing.looking import Parked
from django_rmq_retry.testing.messages import message_of
from django_rmq_retry.testing.recording import Tried
from django_rmq_retry.testing.snapshots import assert_topology

__all__ = ["Fault", "NeverQuiet", "Parked", "RmqTest", "RmqTestMixin", "Tried", "assert_topology", "message_of"]
