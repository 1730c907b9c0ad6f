"""What a model answers on test samples and episodes, and signs that a run failed. Numbers:
fedunseen.metrics.
"""
