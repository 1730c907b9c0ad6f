"""A party's own work on one machine or on a cluster of its own: features and statistics of many
samples, block by block.

:mod:`.engine` maps a task over items: in a loop, or on Ray. :mod:`.sources` cuts samples into
blocks. :mod:`.spread` encodes or counts each block once, also when it is killed in between.
"""
