"""The binaries: flags, gin files, and one main a module."""
