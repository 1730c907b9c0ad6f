"""DICOM, the format of medical pictures: a reader that registers itself with Pillow.

Only the elements that a picture needs are parsed. What a file says of a patient is never read.
"""
