"""Pictures: learning curves, sweeps, animations."""
