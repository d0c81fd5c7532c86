"""Optimizer state in ranges: every worker has all weights, and the moments and the update of one range of them.

ranges   who holds which range, and what has to move when that changes: pure
flat     the parameters of an optimizer as one line of numbers
moments  what this worker's optimizer keeps, of its range alone
gather   updated ranges to all workers, after every step
meeting  what those who are left after a change agree on, and hand over
mesh     how they talk, over a plain group
"""
