"""The chapter on partitions: one model on two processors at once, split where it pays."""
