"""What every room stands on: errors, random streams, parameters, phases, the trainer, losses."""
