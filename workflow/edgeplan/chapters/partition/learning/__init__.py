"""What is learnt from sampled layers: predictors of latency, and what they are compared with."""
