"""The environment interface: states, spaces, timesteps, vectorisation, scenes."""
