"""Papers, attacks, sweeps and the bench: what studies of federated learning need."""
