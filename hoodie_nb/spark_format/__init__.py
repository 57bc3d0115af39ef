"""Spark's format `hoodie_nb`: what `spark.read`, `df.write` and their streams call, in Python."""
