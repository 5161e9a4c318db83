"""What happened to a message, attempt by attempt: written, and read again."""
