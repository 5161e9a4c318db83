"""The connection to RabbitMQ. Only this package and the embedded server import pika."""
