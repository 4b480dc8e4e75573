"""Shows the chapter's measurements: evidence, tables, figures, figures of merit and findings."""
