"""RabbitMQ's semantics in memory: no I/O, no threads, no real time. The default is version 4.0.

The differences between 4.0 and 4.3 are values in `behaviour.py`. The clock and random names are arguments.
"""
