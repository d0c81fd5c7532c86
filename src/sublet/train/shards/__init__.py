"""Optimizer state in ranges: every worker has all weights, and the moments and the update of one range of them.

ranges   which worker holds which range, and what moves when that changes: pure; parameters as one line of numbers
moments  this worker's optimizer, of its range alone
meeting  agreement and hand-over after a change; updated ranges to all workers, after every step
run      the training of a session, as meetings see it
"""
