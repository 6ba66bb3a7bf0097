"""The contract of an environment: states, spaces, timesteps, vectorisation, what a picture is made of."""
