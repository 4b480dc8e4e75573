"""Static memory planning gives addresses to buffers whose lifetimes are known."""
