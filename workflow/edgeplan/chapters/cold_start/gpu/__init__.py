"""Cold starts on a GPU: what each step costs there, the plan, and the starts of plans and of stock engines in fresh processes."""
