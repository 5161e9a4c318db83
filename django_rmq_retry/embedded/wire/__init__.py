"""AMQP 0-9-1 over the engine, on a loopback socket."""
