"""Search for the fusion plan of least cost. Start at `exact.exact`; nothing is imported here.

`space` says what is searched, `enumerate` lists the groups, `lattice` and `ordered` are the two dynamic programs,
`parts` splits, reuses and joins, `prices` bounds, `improve` and `partition` are the heuristics, `baselines` and
`policies` the plans to compare with, `oracle` the exhaustive truth for tests.
"""
