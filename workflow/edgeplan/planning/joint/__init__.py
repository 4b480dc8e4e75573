"""Planning of a first inference as a whole: kernels are made, weights read and steps executed within one budget of memory."""
