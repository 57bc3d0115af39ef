"""For learning: flights, the race, the doctor, widgets. Public names are in `hoodie_nb`."""
