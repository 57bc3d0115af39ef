"""`format("hoodie_nb")` for `df.write` and `writeStream`; its readers are in `on_spark`."""
