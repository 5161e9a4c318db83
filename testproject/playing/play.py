"""The whole demo, on the broker and with the settings prepared for it."""

import time
from contextlib import ExitStack
from pathlib import Path

from django.contrib.auth.models import User
from django.core.management import call_command

from django_rmq_retry.publishing import broker_connections
from testproject.payments import gateway
from testproject.playing.children import beside
from testproject.playing.customers import open_accounts
from testproject.playing.ending import Asked, Ending
from testproject.playing.metrics import measured
from testproject.playing.place import Place
from testproject.playing.queues import declared
from testproject.playing.scenario import Scenario, Wrong
from testproject.playing.stage import Stage
from testproject.playing.stream import Stream
from testproject.playing.web import served

PATIENCE = 60.0
CONSUMER = ("rmq_consume", "--threads", "4", "--json-logs", "--shutdown-timeout", "10")
WELCOME = """
The admin is on {address}admin/ for admin, password admin. What to try there:
  Payments, Add   a payment of your own; its message leaves as the admin's transaction commits
  Gateway         does not answer: card payments are retried until it does, and parked after five attempts
  Accounts        a limit: cash above it is tried four times, then parked
The consumer's metrics are on {metrics}
Ctrl-C ends everything.
"""


def play(here: Place, folder: Path, ending: Ending, *, check: bool, port: int, within: float) -> int:
    """Open the bank, run the demo and close the bank; return the exit code."""
    begun = time.monotonic()
    stage = Stage(ending)
    stage.say(f"The bank opens, on {here.description}.")
    try:
        with ExitStack() as stack:
            address, metrics = _open(stack, stage, here, folder, port)
            if check:
                return _check(Scenario(stage, address, metrics, until=begun + within), stage, begun)
            stage.say(WELCOME.format(address=address, metrics=metrics))
            Stream(stage, address).run()
    except Asked:
        stage.say(f"\nThe bank has closed: {stage.tally.total()}.")
        return 130 if check else 0


def _open(stack: ExitStack, stage: Stage, here: Place, folder: Path, port: int) -> tuple[str, str]:
    """Start all processes; return the addresses of the web server and of the consumer's metrics."""
    call_command("migrate", verbosity=0)
    User.objects.create_superuser("admin", password="admin")
    open_accounts()
    gateway.become("up")
    if here.embedded:
        broker = stack.enter_context(beside(folder, "rmq_broker"))
        stage.children.append(broker)
        stage.wait(lambda: "listens on" in broker.output(), "the broker's start", until=time.monotonic() + PATIENCE)
    # Ended before the broker, because a lost connection would be logged and retried.
    stack.callback(broker_connections.close)
    stack.enter_context(declared())
    metrics = measured(stack, stage, folder, *CONSUMER)
    return served(stack, stage, folder, port), metrics


def _check(scenario: Scenario, stage: Stage, begun: float) -> int:
    try:
        for sentence in scenario.run():
            stage.say(f"ok        {sentence}", "MIGRATE_HEADING")
    except Wrong as wrong:
        stage.say(f"not ok    {wrong}", "ERROR")
        stage.say(f"The check failed after {time.monotonic() - begun:.1f} s.")
        return 1
    stage.say(f"The check ended well after {time.monotonic() - begun:.1f} s.")
    return 0
