"""Everything that speaks to RabbitMQ, and the only place that imports pika."""
