"""Running plans: buffers, the step table, verification and measurement."""
