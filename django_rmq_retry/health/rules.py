"""When a state is a problem: one threshold each for the admin, the commands, the metrics and the alert rules."""

from datetime import timedelta

VANISHED = timedelta(seconds=30)
"""The time without a heartbeat after which a process counts as vanished."""
OUTBOX_OVERDUE = timedelta(minutes=5)
"""The age from which a message in the outbox is a problem: a relay sends within seconds."""
RUN_IDLE = timedelta(minutes=5)
"""The time without progress from which a requeue run is a problem."""
NEARLY_FULL = 0.8
"""The share of a limit from which blocked messages are a warning."""
