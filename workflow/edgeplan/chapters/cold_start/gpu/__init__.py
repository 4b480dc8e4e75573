"""Cold starts on a GPU (NNV12, section 3.4): what each step costs there, the plan, and starts in fresh processes."""
