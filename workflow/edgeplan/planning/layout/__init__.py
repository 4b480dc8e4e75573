"""Static memory planning gives addresses to buffers whose lifetimes are known.

Modules:

* `buffers`: Defines buffers with half-open lifetimes, and the layouts that are found for them.
* `canonical`: Searches exactly for a layout within a capacity.
* `csv_files`: Reads and writes the common CSV of static memory planning: id, lower, upper, size;
  and alignment, hint, gaps and offset.
* `greedy`: Lays buffers out greedily: one after the other, each at the lowest address where it
  fits.
* `parts`: Divides a problem into independent parts, and finds who lives beside whom in one.
* `search`: Searches for a layout of one part: exact searches that differ in how they break ties, in
  turns.
* `solve`: Lays whole problems out: within a capacity, or as low as can be.
"""
