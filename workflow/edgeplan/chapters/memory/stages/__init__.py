"""The stages of the chapter on memory."""
