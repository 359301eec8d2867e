"""The binaries: flags, gin files, and one `main` per module."""
