"""Clients in other processes: the coordinator's side of a round, what is sent, and who carries
it.
"""
