"""RabbitMQ 4.0 and 4.3 in memory: no I/O, no threads, no real time. Clock and random names are arguments."""
