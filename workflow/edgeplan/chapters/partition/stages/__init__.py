"""The stages of the chapter on partitions.

Modules:

* `partition`: Stage `partition`: samples, predictors, splits of layers, models end to end,
  handshakes; all that measures is here.
* `partition_checked`: Stage `partition_checked`: models planned by their own sweeps on a pair, and
  all ways to run them on fresh runs.
* `partition_eop`: Stage `partition_eop`: operators sampled and swept, contention, every way to run
  EOP's models; all that measures is here.
"""
