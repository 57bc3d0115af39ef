"""Widgets: the dashboard, knobs, replays, views of tables."""
