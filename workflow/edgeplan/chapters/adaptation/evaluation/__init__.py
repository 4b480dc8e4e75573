"""The chapter's tables, figures and page are made from the ladder."""
