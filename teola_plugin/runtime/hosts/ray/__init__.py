"""Engines as actors on Ray."""
