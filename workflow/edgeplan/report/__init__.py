"""Writes the report of a device: the pages that the chapters' tables and figures are shown in."""
