"""End-to-end benchmarks: whole models through the public API."""
