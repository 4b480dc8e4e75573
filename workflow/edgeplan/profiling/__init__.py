"""What each candidate of each step of a program costs: measured on the runtime that executes plans, or predicted."""
