"""Messages on their way to the broker: rows of the transaction that wants them published."""
