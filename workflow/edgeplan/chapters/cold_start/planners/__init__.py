"""Plans cold starts by pure functions from a profile to a schedule, which know no device."""
