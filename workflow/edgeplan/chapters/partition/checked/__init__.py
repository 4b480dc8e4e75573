"""Plans that check themselves: swept and planned where they run, and held against the other ways by execution."""
