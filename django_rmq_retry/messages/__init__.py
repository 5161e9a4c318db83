"""Messages and their AMQP bytes. Standard library only: no clock, no threads, no randomness."""
