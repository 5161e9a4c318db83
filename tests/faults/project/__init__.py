"""A project whose only handler does what its messages say, for the real command."""
