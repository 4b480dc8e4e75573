"""Finds the best way to serve a model on this machine by running all: `edgeplan compare`, and the runs of `edgeplan plan`."""
