"""The stages of the chapter on partitions."""
