"""What a project can listen to. Sent with ``send_robust``: a receiver that fails is logged and harms no message.

The sender is the class ``Delivery``. Each brings ``handler`` (its name, empty where none took the message),
``delivery`` (the Delivery) and what is named below. They are sent in the worker's thread.
"""

from django.dispatch import Signal

attempted = Signal()
"""One run of a handler has ended: ``verdict`` (a Verdict), ``error`` (the exception or None), ``seconds`` (it took)."""

duplicated = Signal()
"""A message was handled before by a handler with ``once``, and is acknowledged without running: ``verdict``."""

parked = Signal()
"""A message is set aside for a person: ``verdict``, with reason and detail. Its copy is confirmed only after this."""

halted = Signal()
"""A handler with StopTheLine failed and holds its line: ``verdict``, with the seconds to the next attempt."""

released = Signal()
"""A halted line goes on: the message that held it was handled, parked or discarded: ``verdict``."""

recorded = Signal()
"""Parked messages are in the database: ``messages`` and ``groups``, the primary keys of what was added or changed.

The sender is the class ``ParkedMessage``; it is sent in the drainer's thread, after the commit.
"""

opened = Signal()
"""A breaker has opened in this process: ``queue``, ``handler``, and ``cause``, a text. There is no delivery."""

closed = Signal()
"""A probe has succeeded and the breaker is closed: ``queue``, ``handler``, and ``cause``, what it was open for."""
