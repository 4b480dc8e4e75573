"""The chapters: each asks one question, and owns the stages, tables and figures that answer it."""
