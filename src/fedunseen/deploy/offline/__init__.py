"""A whole federation in files, for methods that need one message from each party: plan, answers,
merge.

``files`` reads and writes signed files, ``party`` is what a party does, ``coordinator`` what the
coordinator does.
"""
