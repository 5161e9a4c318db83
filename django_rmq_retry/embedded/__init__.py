"""The embedded broker for development, demos and tests: one engine, reached in process or by AMQP."""
