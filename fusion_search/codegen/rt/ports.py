"""Looking at the arrays of a run: do kernels find in them what was planned, and where.

NumPy publishes where an array object keeps its address, shape, type and flags
(`PyArrayObject_fields <https://numpy.org/doc/stable/reference/c-api/types-and-structures.html>`_).
"""

from numba import njit

from fusion_search.codegen.rt.memory import p_i4, p_i8

#: Bytes in front of an array's own fields: what every object of the
#: interpreter has, its type last.
_HEAD = object.__basicsize__
#: Columns of a table of ports.  Objects lie elsewhere in each process, so none
#: may stand in compiled code, which is kept on disk.
PORT_FIELDS = ("type", "dtype", "flags", "bytes", "dimensions", "extents", "written")
_FIELDS = len(PORT_FIELDS)


@njit("i8(i8,i8,i8,i8)", cache=True, error_model="numpy")
def admit(ports, count, objects, places):
    """Take the data addresses of arrays, or say which is the first that does not fit.

    It holds the interpreter's lock, so that no array changes under its eyes.

    Parameters
    ----------
    ports : int
        Address of rows of `PORT_FIELDS`, those of arrays that are written last.
    count : int
    objects : int
        Address of the arrays' `id`, as int64.
    places : int
        Where the data addresses go, as int64.

    Returns
    -------
    int
        -1 when all fit: arrays proper, of the very dtype, shape and layout, none that is written overlapping another.
    """
    table, held, found = p_i8(ports, 0), p_i8(objects, 0), p_i8(places, 0)
    for k in range(count):
        row = k * _FIELDS
        if p_i8(held[k] + _HEAD - 8, 0)[0] != table[row]:
            return k
        fields = p_i8(held[k] + _HEAD, 0)  # data, dimensions (int), extents, strides, base, dtype, flags (int)
        wanted, rank = table[row + 2], table[row + 4]
        if fields[5] != table[row + 1] or p_i4(held[k] + _HEAD + 48, 0)[0] & wanted != wanted or p_i4(held[k] + _HEAD + 8, 0)[0] != rank:
            return k
        extents, planned = p_i8(fields[2], 0), p_i8(table[row + 5], 0)
        for d in range(rank):
            if extents[d] != planned[d]:
                return k
        start = fields[0]
        if table[row + 6]:
            for other in range(k):
                if start < found[other] + table[other * _FIELDS + 3] and found[other] < start + table[row + 3]:
                    return k
        found[k] = start
    return -1
