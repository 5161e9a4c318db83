"""Order within a key: a failed message goes first, and later messages with its ordering key wait in the database."""
