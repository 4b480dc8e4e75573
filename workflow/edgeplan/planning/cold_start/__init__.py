"""Cold start: which kernel, which weights and which core for each step, so that the first inference ends soonest (NNV12)."""
