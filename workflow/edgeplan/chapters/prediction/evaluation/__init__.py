"""What the chapter shows: evidence, tables, figures, figures of merit and findings."""
