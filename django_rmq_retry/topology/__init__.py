"""Queues, exchanges and bindings: written, declared, compared and drawn. Pure."""
