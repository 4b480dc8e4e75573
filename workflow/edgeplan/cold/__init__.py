"""Cold inference measured: one fresh process a run, the stock engines as baselines, and the journal of the runs."""
