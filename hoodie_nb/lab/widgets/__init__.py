"""Widgets in a notebook: which pictures each one shows, its buttons and sliders."""
