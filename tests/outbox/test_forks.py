"""A process forked while another thread of its parent holds the lock of the broker's state."""

import os

from django_rmq_retry.publishing import broker_connections


def test_a_forked_child_does_not_wait_for_a_lock_of_its_parent() -> None:
    with broker_connections.connections.reach._lock:
        child = os.fork()
        if not child:
            os._exit(not broker_connections.connections.reach._lock.acquire(timeout=5))
        _, status = os.waitpid(child, 0)

    assert os.waitstatus_to_exitcode(status) == 0
