"""For learning: pictures, widgets, experiments, recordings. Public names are in `hoodie_nb`."""
