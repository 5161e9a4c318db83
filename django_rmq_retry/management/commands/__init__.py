"""One module for each command: it parses arguments and calls one object."""
