"""Secure aggregation: parties hide what they send under masks that cancel in the sum, so that nobody sees one of them.

``primitives`` is what two kept libraries of cryptography offer, ``words`` turns numbers into whole ones and back,
``party`` and ``server`` are the two halves of the protocol, ``aggregation`` runs both in one process. The engine of
parties elsewhere (``remote``) passes the same messages over the wire.
"""
