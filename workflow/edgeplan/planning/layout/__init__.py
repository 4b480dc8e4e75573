"""Static memory planning gives addresses to buffers whose lifetimes are known.

Modules:

* `buffers`: Buffers with half-open lifetimes, and the layouts that are found for them.
* `canonical`: Exact search for a layout within a capacity.
* `csv_files`: The common CSV of static memory planning: id, lower, upper, size; and alignment,
  hint, gaps and offset.
* `greedy`: Greedy layouts: one buffer after the other, each at the lowest address where it fits.
* `parts`: Independent parts of a problem, and who lives beside whom in one.
* `search`: A layout of one part: exact searches that differ in how they break ties, in turns.
* `solve`: Layouts of whole problems: within a capacity, or as low as can be.
"""
