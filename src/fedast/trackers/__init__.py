"""Trackers of experiments as observers, one file each: ``--track NAME``, ``track = [NAME]``."""
