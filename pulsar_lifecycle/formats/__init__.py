"""Bytes and values of everything Pulsar and BookKeeper store that this library reads, without IO.

A format is a module: ``decode`` turns bytes into frozen values, ``encode`` turns them back. Malformed bytes raise
CorruptFormat with the offset and what was expected there, known forms that are not read raise UnsupportedFormat, and
nothing else is raised by a decoder. No decision belongs here, only what the bytes say.
"""
