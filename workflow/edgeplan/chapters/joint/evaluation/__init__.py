"""Makes figures of merit, tables and the page from what the chapter measured.

Modules:

* `page`: First inferences within a budget: figures of merit, the tables and the page of a device.
"""
