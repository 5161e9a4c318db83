"""An app whose tasks run in processes of their own."""
