"""What the templates of the admin say in the app's own way."""
