"""Other projects' training loops and simulators, for comparison."""
