"""Output of runs: checkpoints, records, progress, exports."""
