"""The rows and columns of a product's blocks: threads share them alike, and what is computed again costs less than it gains."""

from __future__ import annotations

import numpy as np
import pytest

from fusion_search.codegen.panels import KERNEL_ROWS, PASSING_ROWS, VECTOR, Again, panel_blocks

MOST = 144, 64


def test_blocks_of_products_cut_no_side_that_must_be_whole() -> None:
    rng = np.random.default_rng(1)
    for _ in range(300):
        rows, columns, others = (int(rng.choice(v)) for v in ([0, 1, 5, 64, 300, 5000], [0, 1, 16, 63, 196, 768], [0, 1, 8]))
        for threads in (1, 2, 3, 16):
            for cut in ((True, True), (False, True), (True, False)):
                tall, wide = panel_blocks(rows, columns, others, MOST, cut, threads)
                assert 0 < wide <= MOST[1]
                assert tall > 0
                assert tall <= MOST[0] if cut[0] else tall >= rows


def test_threads_share_what_can_be_cut() -> None:
    """Columns alone are cut: both threads get a like share of vectors, though rows could make up for it if they were cut."""
    for columns in (196, 289, 784, 1225):
        _, wide = panel_blocks(300, columns, 1, MOST, (False, True), 2)
        vectors = [-(-min(wide, columns - start) // 16) for start in range(0, columns, wide)]
        ends = [0, 0]
        for count in sorted(vectors, reverse=True):
            ends[ends.index(min(ends))] += count
        assert max(ends) <= 1.1 * sum(vectors) / 2 + 0.5, columns


def test_blocks_of_products_share_rows_and_keep_packed_panels_whole() -> None:
    rng = np.random.default_rng(1)
    for _ in range(300):
        rows, columns, others, threads = (
            int(rng.choice(v)) for v in ([1, 5, 64, 128, 197, 1500], [1, 49, 384, 1152], [1, 6], [1, 2, 3, 16])
        )
        cut, packed = (bool(rng.integers(2)), bool(rng.integers(2))), bool(rng.integers(2))
        tall, wide = panel_blocks(rows, columns, others, MOST, cut, threads, packed)
        assert tall >= 1
        assert wide % 64 == 0 or not packed or not cut[1]
        assert cut[0] or tall >= rows
        if cut == (True, False) and others == 1 and rows >= 12 * threads:
            # nothing but rows to share: the thread with most has few more than its part
            loads = [0] * threads
            for start in range(0, rows, tall):
                loads[loads.index(min(loads))] += min(tall, rows - start)
            assert max(loads) <= -(-rows // threads) + KERNEL_ROWS


def makespan(rows: int, columns: int, others: int, tall: int, wide: int, threads: int, again: Again) -> float:
    """When the last thread is done with blocks of that size, in rows times vectors, the product's own and what is computed again."""
    heights = [min(tall, rows - start) for start in range(0, rows, tall)]
    vectors = [-(-min(wide, columns - start) // VECTOR) for start in range(0, columns, wide)]
    costs = [h * v + again.row * h + again.vector * v + again.block for h in heights for v in vectors] * others
    return driven(costs, threads)


def driven(costs: list[float], threads: int) -> float:
    """Walk blocks as the driver does, one moment after the other: each thread its own ones in order, then what others have left."""
    queues = [costs[t * len(costs) // threads : (t + 1) * len(costs) // threads] for t in range(threads)]
    ends = [0.0] * threads
    while any(queues):
        t = ends.index(min(ends))
        queue = next(queues[(t + k) % threads] for k in range(threads) if queues[(t + k) % threads])
        ends[t] += queue.pop(0)
    return max(ends)


@pytest.mark.parametrize("threads", [2, 3, 8])
def test_blocks_suit_the_order_in_which_threads_take_them(threads: int) -> None:
    """No thread is left with more rows than the others because its own blocks, which follow each other, are the taller ones."""
    for rows in (128, 197, 300, 1500):
        for columns in (1376, 3072, 8192):
            again = Again(row=4.0)
            tall, wide = panel_blocks(rows, columns, 1, MOST, (True, True), threads, True, again)
            ideal = (rows * -(-columns // VECTOR) + again.row * rows * -(-columns // wide)) / threads
            assert makespan(rows, columns, 1, tall, wide, threads, again) <= 1.1 * ideal, (rows, columns, tall, wide)


def test_computing_again_costs_less_than_it_gains() -> None:
    """No blocks are slower than whole sides, or than those that a product alone would have."""
    rng = np.random.default_rng(2)
    for _ in range(400):
        rows, columns, others, threads = (
            int(rng.choice(v)) for v in ([1, 8, 64, 128, 300], [64, 196, 768, 4096], [1, 2, 9], [1, 2, 3, 16])
        )
        again = Again(*(float(rng.choice([0, 1e-2, 1, 50, 1000])) for _ in range(3)))
        packed = bool(rng.integers(2))
        tall, wide = panel_blocks(rows, columns, others, MOST, (True, True), threads, packed, again)
        own = panel_blocks(rows, columns, others, MOST, (True, True), threads, packed)
        mine = makespan(rows, columns, others, tall, wide, threads, again)
        # what a micro-kernel of odd rows, a copy, and a thread that is held up cost is weighed besides
        for other in ((rows, -(-columns // 64) * 64), own):
            theirs = makespan(rows, columns, others, *other, threads, again)
            assert mine <= 1.35 * theirs + (tall + 16) * 8, (rows, columns, others, threads, again, packed, (tall, wide), other)


@pytest.mark.parametrize("threads", [1, 2, 3, 8])
def test_dear_members_are_computed_no_more_often_than_threads_need(threads: int) -> None:
    """A member that is as much work as the product runs once for each block of rows, and columns are whole if rows suffice."""
    for columns in (256, 1024, 4096):
        vectors = columns // VECTOR
        tall, wide = panel_blocks(1200, columns, 1, MOST, (True, True), threads, True, Again(row=float(vectors)))
        assert wide >= columns
        assert -(-1200 // tall) >= threads


@pytest.mark.parametrize("threads", [2, 3, 8])
def test_cheap_members_keep_no_thread_from_a_long_row(threads: int) -> None:
    """A few rows are all in one block, since its panels pass through the cache once, and the columns are shared."""
    for rows in (1, 2, 8, PASSING_ROWS):
        tall, wide = panel_blocks(rows, 4096, 1, MOST, (True, True), threads, True, Again(row=2.0))
        assert tall >= rows
        loads = [0] * threads
        for start in range(0, 4096, wide):
            loads[loads.index(min(loads))] += min(wide, 4096 - start)
        assert max(loads) <= 1.25 * 4096 / threads
        assert wide % MOST[1] == 0
