"""The consuming process. The web process never imports this package."""
