"""The broker without a server, for development, demos and tests: one pure engine, and the faces that let clients in."""
