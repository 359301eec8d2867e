"""Storage: atomic files, checkpoint folders, descriptions of objects, remote folders."""
