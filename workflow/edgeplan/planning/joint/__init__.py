"""Planning of a first inference as a whole: kernels are made, weights read and steps executed within one budget of memory.

Modules:

* `bounds`: This module bounds the time of every first inference within a budget from below.
* `first`: A first inference within a budget: two threads make kernels, a reader brings weights, one
  thread executes the steps.
* `search`: Plans of a first inference: a placement of weights and tensors, and an order of kernels,
  searched for its makespan.
"""
