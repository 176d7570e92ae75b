"""Tuning: schedules that this machine runs faster than those of least J; and sweeps over machines, extents and methods."""
