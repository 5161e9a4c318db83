"""An app that makes one body impossible to store, as a limit of some database might."""
