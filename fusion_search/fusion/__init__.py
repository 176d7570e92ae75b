"""Fusion groups: which are legal and why the others are not, and what each one counts."""
