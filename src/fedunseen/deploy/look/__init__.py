"""A first look before an experiment is agreed: which classes, how many samples, which ranges.

``holdings`` counts what a folder holds, ``question`` says what is asked and coarsens the counts,
``party`` answers once, ``coordinator`` adds the answers up, ``findings`` says what to look at.
``over_links`` carries both over WebSocket, Flower and NVFlare.
"""
