"""Spark's format `hoodie_nb`: what `spark.read`, `df.write` and their streams call, in Python.

Spark calls a data source in processes of its own: one beside the driver plans, the executors' run
the tasks, and another one beside the driver commits. None of them has the SparkSession.
"""
