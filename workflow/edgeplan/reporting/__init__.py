"""What tables, figures and reports of all chapters are made with."""
