"""Environments made of other environments, and adapters from and to other libraries."""
