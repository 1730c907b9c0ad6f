"""Privacy and defences: what protects clients' data, and what protects the model from clients."""
