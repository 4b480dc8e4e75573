"""Models that run in less memory than their weights take: weights come from the disk while steps run (FlexNN, section 3.4)."""
