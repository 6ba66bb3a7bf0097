"""Environments built on others, and adapters from and to JaxMARL and gymnax."""
