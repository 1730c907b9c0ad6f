"""The stages of a run, each a function of a setup that returns the setup of the next stage."""
