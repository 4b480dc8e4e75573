"""EOP (VEE 2022): operators sampled, fitted, tuned and run on a pair."""
