"""Makes figures of merit, tables and the page from what the chapter measured."""
