"""Compiled training programs and a run around them: evaluation, checkpoints, loading."""
