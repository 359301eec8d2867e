"""Converts agents and environments between this library and others."""
