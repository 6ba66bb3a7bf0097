"""What algorithm files are made of: rollouts, advantages, optimiser."""
