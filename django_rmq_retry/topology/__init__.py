"""Queues, exchanges and bindings: defined, declared, compared and drawn. Pure."""
