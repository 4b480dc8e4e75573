"""The stages of the chapter on partitions.

Modules:

* `partition`: Stage `partition`: samples, predictors, splits of layers, models end to end,
  handshakes; all that measures is here.
* `partition_eop`: Stage `partition_eop`: operators sampled and swept, contention, every way to run
  EOP's models; all that measures is here.
"""
