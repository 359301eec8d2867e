"""Runnable measurements; each ends with one JSON line."""
