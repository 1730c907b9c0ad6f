"""Other people's learners, each in the fewest lines from its paper, to stand in one table with
ours (``benchmarks/accuracy/peers.py``). They are yardsticks: no run uses them.
"""
