"""A real consumer that is killed between the commit and the ack: the effect still happens once."""

import signal
from pathlib import Path

import pytest
from pika.adapters.blocking_connection import BlockingChannel

from tests.inbox.conftest import Send, Till, done, left
from tests.tooling.marks import nightly_on_sqlite

pytestmark = pytest.mark.database
BURST = ("rmq_consume", "--burst", "--threads", "1")


@nightly_on_sqlite
def test_a_kill_between_commit_and_ack_handles_the_message_once(
    till: Till, send: Send, amqp: BlockingChannel, tmp_path: Path
) -> None:
    send(1)
    killed = till.run(*BURST, TILL_DIES=str(tmp_path / "mark"))
    assert (killed.returncode, done()) == (-signal.SIGKILL, [1])
    again = till.run(*BURST)

    assert (again.returncode, done(), left(amqp)) == (0, [1], 0)
    assert again.stdout.count("handled before") == 1, again.stdout
