"""AMQP 0-9-1 over the engine, on a loopback socket: any client of RabbitMQ's talks to it as it is."""
