"""DICOM, the format of medical pictures: a reader that registers itself with Pillow.

Only the elements that a picture needs are parsed. Of a patient, ``patient.py`` reads the ID, which
never leaves it.
"""
