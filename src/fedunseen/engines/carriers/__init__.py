"""What carries messages between a coordinator and its parties: one folder a library, the only one that imports it."""
