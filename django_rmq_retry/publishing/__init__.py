"""Publishing, calls, and the transactional outbox."""
