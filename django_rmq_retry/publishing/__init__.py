"""Publishing, calls and the outbox."""
