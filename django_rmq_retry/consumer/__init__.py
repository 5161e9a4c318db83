"""The consuming process. The web process never imports it."""
