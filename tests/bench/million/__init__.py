"""A million parked messages on PostgreSQL: how long the pages take, and the acts on very many of them."""
