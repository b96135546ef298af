"""What the library does with the ports: read the metastore, look a reference up afresh, send intents, delete.

Belongs here: everything that acts or reads through ``ports`` and decides nothing by itself. Runs unchanged on Spark
executors, in the command line and in the simulator.
"""
