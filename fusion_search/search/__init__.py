"""Search for the fusion plan of least cost. Start at `exact.exact`; nothing is imported here.

`space` says what is searched, `enumerate` lists the groups, `repeats` those of repeated layers once, `lattice` and `ordered`
are the two dynamic programs, `parts` splits, reuses and joins, `prices` bounds, `runs` cuts long sequences, `grow`, `improve` and
`partition` are the heuristics, `baselines` and `policies` the plans to compare with, `oracle` the exhaustive truth for tests, `milp`
a second opinion.
"""
