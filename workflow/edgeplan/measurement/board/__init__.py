"""Measures on boards: machines that a command reaches, on which a worker measures for this host."""
