"""Engine "flower": Flower carries what FedUnseen sends, on its public interfaces alone.

In an existing federation of Flower, and in its simulation, FedUnseen is an app (``app.py``). At a
party the app's short-lived processes ask one that stays (``staying.py``).
"""
