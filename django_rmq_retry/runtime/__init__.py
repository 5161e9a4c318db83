"""Joins broker and handlers: knows neither Django nor pika."""
