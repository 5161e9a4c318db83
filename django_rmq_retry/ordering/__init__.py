"""Order within a key: what has failed goes first, and what came after it waits in the database."""
