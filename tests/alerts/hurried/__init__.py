"""An app of the shop that looks for findings without waiting."""
