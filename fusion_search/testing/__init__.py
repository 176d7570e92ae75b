"""Generators of random programs and plans, for tests and fuzzing."""
