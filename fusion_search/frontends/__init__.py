"""Readers that turn other programs' models into graphs."""
