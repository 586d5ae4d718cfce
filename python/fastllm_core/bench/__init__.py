"""Measuring: load on a server, and an engine by itself."""
