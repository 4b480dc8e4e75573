"""Plans of partitions say which of two processors runs each step of a model, whole or split between both."""
