"""What only the tables of papers need: one folder a paper, with a README from equations and tables
to files.
"""
