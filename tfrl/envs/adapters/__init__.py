"""Adapters: environments of other libraries behind the device protocol."""
