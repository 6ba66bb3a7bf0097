"""Scripted policies: what learned ones are compared with."""
