"""What people read: plans, certificates and measurements as text."""
