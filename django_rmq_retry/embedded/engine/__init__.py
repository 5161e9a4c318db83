"""RabbitMQ's semantics in memory, as version 4.0 has them unless another is asked for: no I/O, no threads, no time.

What differs between 4.0 and 4.3 stands in one table, `behaviour.py`; the clock and the chance are handed in.
"""
