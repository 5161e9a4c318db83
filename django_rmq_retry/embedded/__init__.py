"""The embedded broker for development, demos and tests: one engine, used in process or over AMQP."""
