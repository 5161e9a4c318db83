"""Signals for projects, sent with ``send_robust``: a failing receiver is logged and affects no message.

The sender is the class ``Delivery``. Each signal has ``handler`` (its name, empty if no handler matched),
``delivery`` (the Delivery) and the arguments named below. Signals are sent in the worker's thread.
"""

from django.dispatch import Signal

attempted = Signal()
"""An attempt has ended: ``verdict`` (a Verdict), ``error`` (the exception or None), ``seconds`` (its duration)."""

duplicated = Signal()
"""A handler with ``once`` has handled the message before; it is acked without an attempt: ``verdict``."""

parked = Signal()
"""A message is parked: ``verdict``, with reason and detail. Its copy is confirmed only after this signal."""

halted = Signal()
"""A handler with StopTheLine failed, at each attempt, and stops its queue: ``verdict``, with the seconds to wait."""

resumed = Signal()
"""A stopped queue resumes: the message that stopped it was handled, parked or discarded: ``verdict``."""

recorded = Signal()
"""Parked messages were stored: ``messages`` and ``groups`` are the primary keys of the added or changed rows.

The sender is the class ``ParkedMessage``; the drainer's thread sends it after the commit.
"""

breaker_opened = Signal()
"""A breaker opened in this process: ``queue``, ``handler`` and ``cause``, a text. There is no delivery."""

breaker_closed = Signal()
"""A probe succeeded and the breaker closed: ``queue``, ``handler`` and ``cause``, the reason why it was open."""
