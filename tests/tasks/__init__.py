"""Tests of the backend for Django's tasks."""
