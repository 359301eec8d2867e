"""The version of the package, read by setup.py and by `tfrl.__version__`."""

__version__ = "0.1.0"
