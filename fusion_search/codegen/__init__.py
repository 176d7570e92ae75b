"""From a fusion group to the source of one kernel, and what that kernel must be given."""
