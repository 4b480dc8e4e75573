"""The chapter on first inferences within a budget: kernels, weights and memory planned as one, from process start on."""
