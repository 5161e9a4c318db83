"""Alerts: what is wrong leaves by mail and webhook when it begins, gets worse and is over."""
