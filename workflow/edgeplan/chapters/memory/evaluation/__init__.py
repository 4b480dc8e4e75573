"""Tables, figures and figures of merit of the chapter on memory."""
