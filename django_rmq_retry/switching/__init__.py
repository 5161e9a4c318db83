"""What keeps a queue from being consumed for a while, and a handler from running too often; over all processes."""
