"""What makes parts of this library parts of others, and those of others parts of this one."""
