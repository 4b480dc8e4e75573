"""Static memory planning: addresses for buffers whose lifetimes are known."""
