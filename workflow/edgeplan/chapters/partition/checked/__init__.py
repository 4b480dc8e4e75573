"""Plans that check themselves: swept, planned and refined where they run, and held against the other ways by execution."""
