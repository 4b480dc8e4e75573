"""Tables, figures and reports of all chapters are made with these modules."""
